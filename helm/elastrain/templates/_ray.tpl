{{/* Environment of head and workers. */}}
{{- define "elastrain.rayEnv" -}}
# a dead actor's children die too, also those in a session of their own, which process groups would miss
- {name: RAY_process_group_cleanup_enabled, value: "false"}
- {name: RAY_kill_child_processes_on_worker_exit_with_raylet_subreaper, value: "true"}
# a job's processes have an environment of their own: idle ones started ahead serve nobody
- {name: RAY_prestart_worker_first_driver, value: "false"}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
{{- with include "elastrain.storageEnv" . }}
{{ . }}
{{- end }}
{{- end -}}

{{- define "elastrain.rayMounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: shm, mountPath: /dev/shm}
- {name: home, mountPath: /home/elastrain}
{{- with include "elastrain.storageMounts" . }}
{{ . }}
{{- end }}
{{- end -}}

{{/* Called with root and part. */}}
{{- define "elastrain.rayVolumes" -}}
- name: tmp
  emptyDir: {{ with .part.scratch }}{sizeLimit: {{ . }}}{{ else }}{}{{ end }}
- name: home
  emptyDir: {}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .part.shm | default "512Mi" }}}
{{- with include "elastrain.storageVolumes" .root }}
{{ . }}
{{- end }}
{{- end -}}

{{/* Ray's object store is to fit into /dev/shm: a larger one, which it would choose itself, goes to a slow /tmp. */}}
{{- define "elastrain.objectStore" -}}
{{- div (mul (include "elastrain.bytes" (.shm | default "512Mi") | int64) 8) 10 -}}
{{- end -}}

{{/* `ray start` takes texts. Called with ours and the user's. */}}
{{- define "elastrain.rayStartParams" -}}
{{- range $name, $value := mergeOverwrite (deepCopy .ours) (deepCopy (.given | default dict)) }}
{{ $name }}: {{ $value | toString | quote }}
{{- end }}
{{- end -}}

{{- define "elastrain.rayHeadPod" -}}
{{- $ray := .Values.ray -}}
{{- $head := $ray.head | default dict -}}
{{- $scope := dict "root" . "component" "ray-head" "part" $head -}}
metadata:
  labels:
    {{- include "elastrain.podLabels" $scope | nindent 4 }}
  {{- with include "elastrain.podAnnotations" $scope }}
  annotations:
    {{- . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "elastrain.rayClusterName" . }}-head
  automountServiceAccountToken: {{ ($ray.autoscaling).enabled | default false }} # the autoscaler asks Kubernetes for workers
  enableServiceLinks: false
  {{- include "elastrain.podSpec" $scope | nindent 2 }}
  containers:
    - name: ray-head
      image: {{ include "elastrain.image" (dict "root" . "image" $ray.image "otherwise" "elastrain-ray") | quote }}
      imagePullPolicy: {{ ($ray.image).pullPolicy | default "IfNotPresent" }}
      {{- include "elastrain.containerSecurity" . | nindent 6 }}
      ports:
        - {name: gcs-server, containerPort: 6379, protocol: TCP}
        - {name: dashboard, containerPort: 8265, protocol: TCP}
        - {name: client, containerPort: 10001, protocol: TCP}
        - {name: metrics, containerPort: 8080, protocol: TCP}
      env:
        {{- include "elastrain.rayEnv" . | nindent 8 }}
        {{- with include "elastrain.extraEnv" $scope }}
        {{- . | nindent 8 }}
        {{- end }}
      {{- with $head.resources }}
      resources:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      volumeMounts:
        {{- include "elastrain.rayMounts" . | nindent 8 }}
  volumes:
    {{- include "elastrain.rayVolumes" $scope | nindent 4 }}
{{- end -}}

{{/* Called with root, name and part: a worker group. */}}
{{- define "elastrain.rayWorkerPod" -}}
{{- $ray := .root.Values.ray -}}
{{- $group := .part -}}
{{- $grace := ternary 60 $group.terminationGracePeriodSeconds (kindIs "invalid" $group.terminationGracePeriodSeconds) | int -}}
{{- $scope := dict "root" .root "component" "ray-worker" "part" $group -}}
metadata:
  labels:
    {{- include "elastrain.podLabels" $scope | nindent 4 }}
  {{- with include "elastrain.podAnnotations" $scope }}
  annotations:
    {{- . | nindent 4 }}
  {{- end }}
spec:
  serviceAccountName: {{ include "elastrain.rayClusterName" .root }}-worker
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ $grace }}
  {{- with $group.runtimeClassName }}
  runtimeClassName: {{ . }}
  {{- end }}
  {{- include "elastrain.podSpec" $scope | nindent 2 }}
  containers:
    - name: ray-worker
      image: {{ include "elastrain.image" (dict "root" .root "image" (mergeOverwrite (deepCopy ($ray.image | default dict)) (deepCopy ($group.image | default dict))) "otherwise" "elastrain-ray") | quote }}
      imagePullPolicy: {{ ($group.image).pullPolicy | default ($ray.image).pullPolicy | default "IfNotPresent" }}
      {{- include "elastrain.containerSecurity" .root | nindent 6 }}
      lifecycle:
        preStop: # a node that goes away is a notice to the workers on it: they hand over, and nothing is lost
          exec: {command: [python, -m, elastrain.trainers.pod_stop, {{ sub $grace 5 | max 1 | toString | quote }}]}
      ports:
        - {name: metrics, containerPort: 8080, protocol: TCP}
      env:
        {{- include "elastrain.rayEnv" .root | nindent 8 }}
        - {name: ELASTRAIN_GRACE_S, value: {{ max 1 (sub $grace 5) | toString | quote }}}
        {{- with include "elastrain.extraEnv" $scope }}
        {{- . | nindent 8 }}
        {{- end }}
      resources:
        {{- $amounts := dict "cpu" ($group.cpu | toString) "memory" $group.memory -}}
        {{- if $group.gpu -}}{{- $_ := set $amounts ($group.gpuResource | default "nvidia.com/gpu") ($group.gpu | int) -}}{{- end }}
        requests:
          {{- toYaml $amounts | nindent 10 }}
        limits:
          {{- toYaml $amounts | nindent 10 }}
      volumeMounts:
        {{- include "elastrain.rayMounts" .root | nindent 8 }}
  volumes:
    {{- include "elastrain.rayVolumes" $scope | nindent 4 }}
{{- end -}}

{{/* A worker group of the RayCluster. `replicas` and `scaleStrategy` belong to the autoscaler: an upgrade that said `min`
     would take away workers that jobs train on, so what is there stays. The API server's own defaults are said, too: the
     list of groups is one value to it, which is in nobody's way only if it is the same to the last field. Called with
     root, name, part, and live: the cluster as it is. */}}
{{- define "elastrain.rayWorkerGroup" -}}
{{- $group := .part -}}
{{- $name := .name -}}
{{- $replicas := int $group.min -}}
{{- $strategy := dict -}}
{{- if ((.root.Values.ray).autoscaling).enabled -}}
{{- range ((.live).spec).workerGroupSpecs -}}
{{- if eq .groupName $name -}}
{{- $replicas = min (max (int .replicas) (int $group.min)) (int $group.max) -}}
{{- $strategy = .scaleStrategy | default dict -}}
{{- end -}}
{{- end -}}
{{- end -}}
groupName: {{ $name }}
numOfHosts: 1
priority: 0
minReplicas: {{ int $group.min }}
maxReplicas: {{ int $group.max }}
replicas: {{ $replicas }}
{{- with $strategy }}
scaleStrategy:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $group.labels }}
labels:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $ours := dict "num-cpus" ($group.cpu | int) "num-gpus" ($group.gpu | default 0 | int) "memory" (include "elastrain.bytes" $group.memory) "object-store-memory" (include "elastrain.objectStore" $group) -}}
{{- with $group.customResources -}}
{{- $_ := set $ours "resources" (. | toJson | toJson) -}}{{/* it passes a shell */}}
{{- end }}
rayStartParams:
  {{- include "elastrain.rayStartParams" (dict "ours" $ours "given" $group.rayStartParams) | trim | nindent 2 }}
{{- $pod := fromYaml (include "elastrain.rayWorkerPod" .) }}
{{- $_ := set $pod "spec" (mergeOverwrite $pod.spec (deepCopy ($group.override | default dict))) }}
template:
  {{- toYaml $pod | nindent 2 }}
{{- end -}}

{{- define "elastrain.raySpec" -}}
{{- $ray := .Values.ray -}}
{{- $auth := $ray.auth | default dict -}}
{{- $scaling := $ray.autoscaling | default dict -}}
{{- $gcs := $ray.faultTolerance | default dict -}}
{{- $backend := $gcs.backend | default "none" -}}
rayVersion: {{ $ray.version | default "2.60.0" | quote }}
authOptions:
  mode: {{ ternary "token" "disabled" ($auth.enabled | default false) }}
  {{- if and $auth.enabled $auth.existingSecret }}
  secretName: {{ $auth.existingSecret }}
  {{- end }}
enableInTreeAutoscaling: {{ $scaling.enabled | default false }}
{{- if $scaling.enabled }}
autoscalerOptions:
  version: v2
  upscalingMode: {{ $scaling.upscalingMode | default "Default" }}
  idleTimeoutSeconds: {{ ternary 120 $scaling.idleTimeoutSeconds (kindIs "invalid" $scaling.idleTimeoutSeconds) }}
  {{- include "elastrain.containerSecurity" . | nindent 2 }}
  {{- with $scaling.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $scaling.env }}
  env:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
{{- end }}
{{- if eq $backend "redis" }}
gcsFaultToleranceOptions:
  backend: redis
  redisAddress: {{ $gcs.redis.address | quote }}
  externalStorageNamespace: {{ .Release.Namespace }}-{{ include "elastrain.rayClusterName" . }}
  {{- with $gcs.redis.existingSecret }}
  redisPassword:
    valueFrom:
      secretKeyRef: {name: {{ . }}, key: {{ $gcs.redis.passwordKey | default "redis-password" }}}
  {{- end }}
{{- else if eq $backend "rocksdb" }}
gcsFaultToleranceOptions:
  backend: rocksdb
  storage:
    {{- if ($gcs.volume).existingClaim }}
    claimName: {{ $gcs.volume.existingClaim }}
    {{- else }}
    size: {{ ($gcs.volume).size | default "5Gi" }}
    {{- with ($gcs.volume).storageClassName }}
    storageClassName: {{ . }}
    {{- end }}
    {{- end }}
{{- end }}
headGroupSpec:
  rayStartParams:
    {{- $ours := dict "num-cpus" 0 "num-gpus" 0 "dashboard-host" "0.0.0.0" "object-store-memory" (include "elastrain.objectStore" ($ray.head | default dict)) }}
    {{- include "elastrain.rayStartParams" (dict "ours" $ours "given" ($ray.head).rayStartParams) | trim | nindent 4 }}
  {{- $pod := fromYaml (include "elastrain.rayHeadPod" .) }}
  {{- $_ := set $pod "spec" (mergeOverwrite $pod.spec (deepCopy (($ray.head).override | default dict))) }}
  template:
    {{- toYaml $pod | nindent 4 }}
{{- $live := lookup "ray.io/v1" "RayCluster" .Release.Namespace (include "elastrain.rayClusterName" .) }}
workerGroupSpecs:
  {{- range $name, $group := $ray.workerGroups }}
  {{- if $group }}
  - {{- include "elastrain.rayWorkerGroup" (dict "root" $ "name" $name "part" $group "live" $live) | nindent 4 }}
  {{- end }}
  {{- end }}
{{- end -}}

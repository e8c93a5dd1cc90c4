{{/* Whether the store is PostgreSQL; otherwise it is SQLite, for a single pod. */}}
{{- define "elastrain.postgres" -}}
{{- if (.Values.database).existingSecret }}true{{ end -}}
{{- end -}}

{{/* Whether SQLite and the admin's token are on a volume. */}}
{{- define "elastrain.homeVolume" -}}
{{- if and (not (include "elastrain.postgres" .)) ((.Values.database).volume).enabled }}true{{ end -}}
{{- end -}}

{{- define "elastrain.homeClaim" -}}
{{- ((.Values.database).volume).existingClaim | default (printf "%s-home" (include "elastrain.fullname" .)) -}}
{{- end -}}

{{- define "elastrain.url" -}}
{{- $port := (((.Values.service).expose).port) | default 80 -}}
http://{{ include "elastrain.fullname" . }}.{{ .Release.Namespace }}.svc:{{ $port }}
{{- end -}}

{{- define "elastrain.rayAddress" -}}
{{- if (.Values.ray).create -}}
http://{{ include "elastrain.rayClusterName" . }}-head-svc.{{ .Release.Namespace }}.svc:8265
{{- else -}}
{{- (.Values.ray).address -}}
{{- end -}}
{{- end -}}

{{/* Ray's token, where the service finds it: the operator makes a secret of the cluster's name if none is given. */}}
{{- define "elastrain.rayTokenSecret" -}}
{{- $auth := ((.Values.ray).auth) | default dict -}}
{{- if $auth.enabled -}}
{{- $made := ternary (include "elastrain.rayClusterName" .) "" ((.Values.ray).create | default false) -}}
{{- $auth.existingSecret | default $made -}}
{{- end -}}
{{- end -}}

{{/* Nodes that the autoscaler could add: what each worker group's nodes have, and how many there may be. */}}
{{- define "elastrain.capacityMax" -}}
{{- $ray := .Values.ray | default dict -}}
{{- $given := (.Values.settings).capacityMax -}}
{{- if $given -}}
{{- toJson $given -}}
{{- else if and $ray.create ($ray.autoscaling).enabled -}}
{{- $shapes := list -}}
{{- range $name, $group := $ray.workerGroups -}}
{{- if $group -}}
{{- $resources := dict "CPU" (int $group.cpu) "memory" (int64 (include "elastrain.bytes" $group.memory)) -}}
{{- if $group.gpu -}}{{- $_ := set $resources "GPU" (int $group.gpu) -}}{{- end -}}
{{- $resources = merge $resources (deepCopy ($group.customResources | default dict)) -}}
{{- $shapes = append $shapes (dict "resources" $resources "max" (int $group.max)) -}}
{{- end -}}
{{- end -}}
{{- toJson $shapes -}}
{{- end -}}
{{- end -}}

{{/* A Kubernetes quantity such as 4Gi in bytes. */}}
{{- define "elastrain.bytes" -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $text := toString . -}}
{{- $number := regexFind "^[0-9]+" $text -}}
{{- $unit := trimPrefix $number $text -}}
{{- if or (not $number) (not (hasKey $units $unit)) -}}
{{- fail (printf "%s is no amount of memory; give a whole number and a unit, such as 4Gi" $text) -}}
{{- end -}}
{{- mul (int64 $number) (int64 (get $units $unit)) -}}
{{- end -}}

{{/* What cannot work is refused here, with the value and the remedy. */}}
{{- define "elastrain.checks" -}}
{{- $ray := .Values.ray | default dict -}}
{{- $service := .Values.service | default dict -}}
{{- $many := max (int ($service.replicas | default 0)) (int ($service.processes | default 0)) -}}
{{- $several := or (gt $many 1) (.Values.autoscaling).enabled -}}
{{- if and $several (not (include "elastrain.postgres" .)) -}}
{{- fail "service.replicas and service.processes above 1, and autoscaling, need PostgreSQL: SQLite has one writer, and its locks do not reach other pods. Give database.existingSecret, or one replica with one process." -}}
{{- end -}}
{{- if and (include "elastrain.postgres" .) (not (.Values.auth).existingSecret) -}}
{{- fail "database.existingSecret needs auth.existingSecret, a secret with the admin's token: pods without a volume would each make one of their own." -}}
{{- end -}}
{{- if and (not $ray.create) (not $ray.address) -}}
{{- fail "ray.create is false and ray.address is empty: give the address of an existing cluster's dashboard, such as http://ray-head-svc.ray.svc:8265." -}}
{{- end -}}
{{- if and (not $ray.create) ($ray.auth).enabled (not ($ray.auth).existingSecret) -}}
{{- fail "ray.address needs ray.auth.existingSecret, a secret with that cluster's token; or set ray.auth.enabled to false if it asks for none." -}}
{{- end -}}
{{- if and (not $ray.create) (not (.Values.storage).url) (not ((.Values.storage).volume).existingClaim) -}}
{{- fail "an existing Ray cluster cannot mount a volume of this release: give storage.url, or storage.volume.existingClaim that the cluster has at /var/lib/elastrain-objects too." -}}
{{- end -}}
{{- if and ($ray.auth).existingSecret $ray.create (ne (($ray.auth).key | default "auth_token") "auth_token") -}}
{{- fail (printf "ray.auth.key is %q, but KubeRay reads auth_token: rename the key in the secret." ($ray.auth).key) -}}
{{- end -}}
{{- range $name, $group := $ray.workerGroups -}}
{{- if $group -}}
{{- if gt (int $group.min) (int $group.max) -}}
{{- fail (printf "ray.workerGroups.%s: min is %d and max %d; min can be max at most." $name (int $group.min) (int $group.max)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $gcs := $ray.faultTolerance | default dict -}}
{{- if and (eq ($gcs.backend | default "none") "redis") (not ($gcs.redis).address) -}}
{{- fail "ray.faultTolerance.backend is redis: give ray.faultTolerance.redis.address, host:port." -}}
{{- end -}}
{{- if and ((.Values.metrics).serviceMonitor).enabled (not ((.Values.metrics).serviceMonitor).tokenSecret) (not (.Values.auth).existingSecret) -}}
{{- fail "metrics.serviceMonitor.enabled: /metrics asks for a token. Give metrics.serviceMonitor.tokenSecret or auth.existingSecret." -}}
{{- end -}}
{{- end -}}

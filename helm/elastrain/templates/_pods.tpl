{{/* What every pod has: where it runs, who it is, what it pulls. Called with root, component, and part: the values
     of that kind of pod. A part's map is merged over common's, its list comes after it, its scalar wins. */}}
{{- define "elastrain.podSpec" -}}
{{- $common := .root.Values.common | default dict -}}
{{- $part := .part | default dict -}}
{{- with $common.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with mergeOverwrite dict (deepCopy ($common.nodeSelector | default dict)) (deepCopy ($part.nodeSelector | default dict)) }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with concat ($common.tolerations | default list) ($part.tolerations | default list) }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.affinity | default $common.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $part.priorityClassName | default $common.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $common.podSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Called with root and part. */}}
{{- define "elastrain.podAnnotations" -}}
{{- with mergeOverwrite dict (deepCopy ((.root.Values.common).podAnnotations | default dict)) (deepCopy ((.part).podAnnotations | default dict)) -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{/* Labels of a pod: those of its object, and the part's own, which cannot replace what selectors look for. */}}
{{- define "elastrain.podLabels" -}}
{{- $own := fromYaml (include "elastrain.labels" .) -}}
{{- toYaml (merge $own (deepCopy ((.part).podLabels | default dict))) -}}
{{- end -}}

{{/* The user's variables, after ours: a name that comes twice has the last value. Called with root and part. */}}
{{- define "elastrain.extraEnv" -}}
{{- with concat ((.root.Values.common).env | default list) ((.part).env | default list) -}}
{{- toYaml . -}}
{{- end -}}
{{- end -}}

{{- define "elastrain.containerSecurity" -}}
{{- with (.Values.common).containerSecurityContext }}
securityContext:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* How the bucket is reached, in the service and in Ray alike. */}}
{{- define "elastrain.storageEnv" -}}
{{- $storage := .Values.storage | default dict -}}
{{- if $storage.existingSecret }}
- name: AWS_SHARED_CREDENTIALS_FILE
  value: /etc/elastrain/bucket/{{ $storage.key | default "credentials" }}
{{- end }}
{{- with $storage.region }}
- name: AWS_REGION
  value: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "elastrain.storageMounts" -}}
{{- $storage := .Values.storage | default dict -}}
{{- if $storage.existingSecret }}
- name: bucket
  mountPath: /etc/elastrain/bucket
  readOnly: true
{{- end }}
{{- if not $storage.url }}
- name: objects
  mountPath: /var/lib/elastrain-objects
{{- end }}
{{- end -}}

{{- define "elastrain.storageVolumes" -}}
{{- $storage := .Values.storage | default dict -}}
{{- with $storage.existingSecret }}
- name: bucket
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- if not $storage.url }}
- name: objects
  persistentVolumeClaim:
    claimName: {{ ($storage.volume).existingClaim | default (printf "%s-objects" (include "elastrain.fullname" .)) }}
{{- end }}
{{- end -}}

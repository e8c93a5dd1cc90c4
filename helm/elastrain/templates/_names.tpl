{{/* Names are cut at 40 characters, so that the longest suffix (and KubeRay's) still fits into 63. What is cut
     off leaves its hash, so that two long names stay two. They begin with a letter: Services and RayClusters must. */}}
{{- define "elastrain.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- $full := .Values.fullnameOverride -}}
{{- if not $full -}}
{{- $full = ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- end -}}
{{- $full = $full | lower | replace "." "-" | trimAll "-" -}}
{{- if not (regexMatch "^[a-z]" $full) -}}{{- $full = printf "e-%s" $full -}}{{- end -}}
{{- if gt (len $full) 40 -}}
{{- $full = printf "%s-%s" ($full | trunc 31 | trimSuffix "-") ($full | sha256sum | trunc 8) -}}
{{- end -}}
{{- $full -}}
{{- end -}}

{{- define "elastrain.serviceAccountName" -}}
{{- $account := ((.Values.service).serviceAccount) | default dict -}}
{{- $account.name | default (ternary (include "elastrain.fullname" .) "default" ($account.create | default false)) -}}
{{- end -}}

{{- define "elastrain.rayClusterName" -}}{{ include "elastrain.fullname" . }}-ray{{- end -}}

{{/* What never changes during a release's life: selectors are immutable. Called with root and component. */}}
{{- define "elastrain.selectorLabels" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "elastrain.labels" -}}
{{- $own := dict
  "app.kubernetes.io/name" .root.Chart.Name
  "app.kubernetes.io/instance" .root.Release.Name
  "app.kubernetes.io/component" .component
  "app.kubernetes.io/version" .root.Chart.AppVersion
  "app.kubernetes.io/managed-by" .root.Release.Service
  "app.kubernetes.io/part-of" "elastrain"
  "helm.sh/chart" (printf "%s-%s" .root.Chart.Name (.root.Chart.Version | replace "+" "_")) -}}
{{- toYaml (merge $own (deepCopy ((.root.Values.common).labels | default dict))) -}}
{{- end -}}

{{/* Called with root and component: the metadata of an object. */}}
{{- define "elastrain.metadata" -}}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "elastrain.labels" . | nindent 2 }}
{{- end -}}

{{/* Called with root, image and, for releases that had no such value, the repository otherwise. */}}
{{- define "elastrain.image" -}}
{{- $image := .image | default dict -}}
{{- $repository := $image.repository | default .otherwise -}}
{{- if $image.digest -}}
{{ $repository }}@{{ $image.digest }}
{{- else -}}
{{ $repository }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

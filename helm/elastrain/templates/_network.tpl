{{/* Names are asked wherever the cluster's DNS is: a node's own cache has an address outside of all namespaces. */}}
{{- define "elastrain.dnsEgress" -}}
- ports:
    - {port: 53, protocol: UDP}
    - {port: 53, protocol: TCP}
{{- end -}}

{{- define "elastrain.commonEgress" -}}
{{- $policy := .Values.networkPolicy | default dict -}}
{{- $ports := $policy.egressPorts | default list -}}
{{- with (.Values.storage).s3Endpoint -}}
{{- $port := regexFind ":[0-9]+$" (. | trimSuffix "/") | trimPrefix ":" -}}
{{- $ports = append $ports (int ($port | default (ternary 443 80 (hasPrefix "https:" .)))) -}}
{{- end -}}
{{- $seen := dict -}}
{{- with $ports }}
- ports:
    {{- range . }}
    {{- if not (hasKey $seen (toString .)) }}
    - {port: {{ int . }}, protocol: TCP}
    {{- $_ := set $seen (toString .) true }}
    {{- end }}
    {{- end }}
{{- end }}
{{- with $policy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end -}}

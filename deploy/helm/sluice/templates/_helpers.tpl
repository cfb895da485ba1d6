{{- define "sluice.name" -}}
{{ ternary .Release.Name (printf "sluice-%s" .Release.Name | trunc 50 | trimSuffix "-") (contains "sluice" .Release.Name) }}
{{- end }}

{{- define "sluice.labels" -}}
app.kubernetes.io/component: proxy
app.kubernetes.io/name: sluice
app.kubernetes.io/part-of: sluice
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "sluice.selector" -}}
k8s-app: {{ include "sluice.name" . }}
{{- end }}

{{- define "sluice.image" -}}
{{- if .Values.image.digest }}{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else }}{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "sluice.healthPort" -}}
{{ .Values.health.port | default (ternary 10356 10256 (eq .Values.mode "beside")) | int }}
{{- end }}

{{- define "sluice.metricsPort" -}}
{{ .Values.metrics.port | default (ternary 10349 10249 (eq .Values.mode "beside")) | int }}
{{- end }}

{{- /* KubeProxyConfiguration, as deploy/base and deploy/overlays/beside have it. */}}
{{- define "sluice.config" -}}
{{- $config := dict "apiVersion" "kubeproxy.config.k8s.io/v1alpha1" "kind" "KubeProxyConfiguration" "mode" "userspace"
  "healthzBindAddress" (printf "0.0.0.0:%s" (include "sluice.healthPort" .))
  "metricsBindAddress" (printf "%s:%s" (ternary "0.0.0.0" "127.0.0.1" .Values.metrics.expose) (include "sluice.metricsPort" .)) }}
{{- if eq .Values.mode "beside" }}
{{- $_ := set $config "conntrack" (dict "maxPerCore" 0 "tcpEstablishedTimeout" "0s" "tcpCloseWaitTimeout" "0s") }}
{{- end }}
{{- toYaml (mergeOverwrite $config (deepCopy .Values.config)) }}
{{- end }}

{{- /* Nine tenths of a memory limit in Mi or Gi, in MiB. */}}
{{- define "sluice.memoryLimit" -}}
{{- $limit := dig "limits" "memory" "" .Values.resources | toString }}
{{- if regexMatch "^[0-9]+[MG]i$" $limit }}
{{- $mebibytes := mul (regexFind "^[0-9]+" $limit | int64) (ternary 1024 1 (hasSuffix "Gi" $limit)) }}
{{- div (mul $mebibytes 9) 10 }}MiB
{{- end }}
{{- end }}

{{- define "sluice.configMount" -}}
- name: config
  mountPath: /etc/sluice/config.conf
  subPath: config.conf
  readOnly: true
- name: xtables-lock
  mountPath: /run/xtables.lock
{{- end }}

{{- define "sluice.env" -}}
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- end }}

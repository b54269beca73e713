{{- define "cwm.name" -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- end }}

{{- define "cwm.selector" -}}
app.kubernetes.io/name: cwm
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "cwm.labels" -}}
{{ include "cwm.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "cwm.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ .Values.serviceAccount.name | default (include "cwm.name" .) }}
{{- else }}{{ .Values.serviceAccount.name | default "default" }}{{ end }}
{{- end }}

{{- define "cwm.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* What a restricted namespace asks of a pod and of a container. */}}
{{- define "cwm.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "cwm.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* Variables that the gateways and the migration have in common; secrets are files. */}}
{{- define "cwm.env" -}}
- {name: CWM_DATABASE_URL_FILE, value: /run/secrets/cwm/database_url}
- {name: CWM_SHARED_STORE_URL_FILE, value: /run/secrets/cwm/shared_store_url}
- {name: CWM_SECRET_FILE, value: /run/secrets/cwm/cwm_secret}
{{- range $name, $value := .Values.env }}
- name: {{ $name }}
  {{- /* Helm reads every number as a float, and would write a large one with an exponent. */}}
  value: {{ if and (kindIs "float64" $value) (eq $value (floor $value)) }}{{ $value | int64 | quote }}{{ else }}{{ $value | quote }}{{ end }}
{{- end }}
{{- end }}

{{- /* The names by which its own Service and Ingress let clients reach it, and those of cwm.yaml, which this would hide. */}}
{{- define "cwm.hosts" -}}
{{- $name := include "cwm.name" . }}
{{- $hosts := list $name (printf "%s.%s" $name .Release.Namespace) (printf "%s.%s.svc" $name .Release.Namespace) (printf "%s.%s.svc.cluster.local" $name .Release.Namespace) }}
{{- if .Values.ingress.enabled }}{{ $hosts = concat $hosts .Values.ingress.hosts }}{{ end }}
{{- with dig "security" "allowed_hosts" "" .Values.config }}
{{- $hosts = concat $hosts (kindIs "slice" . | ternary . (list .)) }}
{{- end }}
{{- $hosts | uniq | join "," }}
{{- end }}

{{- define "cwm.secretVolume" -}}
name: secrets
secret:
  secretName: {{ required "existingSecret: name the Secret with database_url, shared_store_url and cwm_secret" .Values.existingSecret }}
  defaultMode: 0440
{{- end }}

{{- define "cwm.imagePullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

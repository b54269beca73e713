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
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* The security context that a restricted namespace requires of a pod and of a container. */}}
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

{{- /* Environment variables of both the gateways and the migration; secrets are files. */}}
{{- define "cwm.env" -}}
- {name: CWM_DATABASE_URL_FILE, value: /run/secrets/cwm/database_url}
- {name: CWM_SHARED_STORE_URL_FILE, value: /run/secrets/cwm/shared_store_url}
- {name: CWM_SECRET_FILE, value: /run/secrets/cwm/cwm_secret}
{{- range $name, $value := .Values.env }}
- name: {{ $name }}
  {{- /* Helm reads every number as a float, and would write a large one with an exponent. */}}
  value: {{ if and (kindIs "float64" $value) (eq $value (floor $value)) }}{{ $value | int64 | quote }}{{ else }}{{ $value | quote }}{{ end }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* Host names of the Service and the Ingress, and those of cwm.yaml, which this variable would override. */}}
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

{{- define "cwm.engineLabels" -}}
app.kubernetes.io/name: cwm-engine
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "cwm.coordinatorLabels" -}}
app.kubernetes.io/name: cwm-coordinator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "cwm.engineSecret" -}}
{{ required "engines.existingSecret: name the Secret with kv_keys, valkey_password and kv_valkey_url" .Values.engines.existingSecret }}
{{- end }}

{{- define "cwm.claim" -}}
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: {{ .name }}}
spec:
  accessModes: [ReadWriteOnce]
  {{- with .storage.className }}
  storageClassName: {{ . }}
  {{- end }}
  resources: {requests: {storage: {{ .storage.size }}}}
{{- end }}

{{- /* cwm.yaml: with the engines that the chart starts, each under the name of its pod. */}}
{{- define "cwm.config" -}}
{{- $config := deepCopy .Values.config }}
{{- if .Values.engines.enabled }}
{{- $name := include "cwm.name" . }}
{{- $engines := dict }}
{{- range $number := until (int .Values.engines.replicas) }}
{{- $host := printf "%s-engine-%d.%s-engines" $name $number $name }}
{{- $_ := set $engines (printf "engine-%d" $number) (dict "url" (printf "http://%s:8000" $host) "lmcache" (printf "http://%s:8081" $host)) }}
{{- end }}
{{- $_ := set $config "engines" (merge $engines ($config.engines | default dict)) }}
{{- end }}
{{- toYaml $config }}
{{- end }}

{{- define "cwm.imagePullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

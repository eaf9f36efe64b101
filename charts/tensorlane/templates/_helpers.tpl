{{/* The labels by which the operator's pods are found. They never change. */}}
{{- define "tensorlane.selector" -}}
app.kubernetes.io/component: operator
app.kubernetes.io/name: tensorlane
app.kubernetes.io/part-of: tensorlane
{{- end }}

{{/* The labels of everything; the generated templates have the same. */}}
{{- define "tensorlane.labels" -}}
{{ include "tensorlane.selector" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ include "tensorlane.chart" . }}
{{- end }}

{{- define "tensorlane.chart" -}}
{{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* An image by its digest, else by its tag, else by the version of the app: (dict "image" … "version" …). */}}
{{- define "tensorlane.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .version }}
{{- end }}
{{- end }}

{{- /* User and group of the operator and of the test's pods; nothing where the platform chooses them. */}}
{{- define "tensorlane.user" -}}
{{- if and (int64 .Values.user) (int64 .Values.sidecar.user) -}}
runAsUser: {{ int64 .Values.user }}
runAsGroup: {{ int64 .Values.user }}
{{- end -}}
{{- end -}}

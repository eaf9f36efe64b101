{{/* The labels of everything. The generated templates have the same. */}}
{{- define "tensorlane.labels" -}}
app.kubernetes.io/component: operator
app.kubernetes.io/name: tensorlane
app.kubernetes.io/part-of: tensorlane
{{- end }}

{{/* An image by its digest, else by its tag, else by the version of the app: (dict "image" … "version" …). */}}
{{- define "tensorlane.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .version }}
{{- end }}
{{- end }}

{{- define "outbox-router.labels" -}}
app.kubernetes.io/name: outbox-router
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

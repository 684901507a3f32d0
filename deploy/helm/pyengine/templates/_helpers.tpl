{{- define "pyengine.labels" -}}
app.kubernetes.io/name: pyengine
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}
{{- define "pyengine.engine" -}}
app.kubernetes.io/name: pyengine
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: engine
{{- end }}
{{- define "pyengine.router" -}}
app.kubernetes.io/name: pyengine
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: router
{{- end }}

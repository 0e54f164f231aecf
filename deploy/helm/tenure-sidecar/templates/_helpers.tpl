{{- define "tenure-sidecar.election" -}}
{{- default .Release.Name (index .Values "tenure-sidecar").election -}}
{{- end -}}

{{- define "tenure-sidecar.serviceAccountName" -}}
{{- default .Release.Name (index .Values "tenure-sidecar").serviceAccount.name -}}
{{- end -}}

{{- define "tenure-sidecar.image" -}}
{{- $image := (index .Values "tenure-sidecar").image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default (index .Subcharts "tenure-sidecar").Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{/* The security context of every container, which satisfies the Pod Security Standard `restricted`. */}}
{{- define "tenure-sidecar.securityContext" -}}
runAsNonRoot: true
runAsUser: 65532
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* The labels that the Service and the PodDisruptionBudget select. The pods of the application must have them. */}}
{{- define "tenure-sidecar.selectorLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of all objects. */}}
{{- define "tenure-sidecar.labels" -}}
{{ include "tenure-sidecar.selectorLabels" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end -}}

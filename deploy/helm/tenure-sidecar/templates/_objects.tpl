{{/*
The objects that the sidecar needs: the ServiceAccount, the least Role and its RoleBinding, and optionally a Service and a
PodDisruptionBudget. Include it in a template of its own:

  {{ include "tenure-sidecar.objects" . }}
*/}}
{{- define "tenure-sidecar.objects" -}}
{{- $values := index .Values "tenure-sidecar" -}}
{{- $election := include "tenure-sidecar.election" . -}}
{{- $groups := dict
  "leases" (list "leases")
  "configmaps" (list "configmaps")
  "endpoints" (list "endpoints")
  "configmapsleases" (list "configmaps" "leases")
  "endpointsleases" (list "endpoints" "leases") -}}
{{- if $values.serviceAccount.create }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "tenure-sidecar.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "tenure-sidecar.labels" . | nindent 4 }}
---
{{- end }}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: tenure-{{ $election }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "tenure-sidecar.labels" . | nindent 4 }}
rules:
{{- range get $groups $values.lock }}
{{- $group := eq . "leases" | ternary "coordination.k8s.io" "" }}
- apiGroups: [{{ $group | quote }}]
  resources: [{{ . }}]
  verbs: [get, list, update, watch]
  resourceNames: [{{ $election | quote }}]
- apiGroups: [{{ $group | quote }}]
  resources: [{{ . }}]
  verbs: [create]
{{- end }}
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- if $values.service.enabled }}
- apiGroups: [""]
  resources: [pods]
  verbs: [list, patch]
{{- end }}
{{- with $values.rules }}
{{ toYaml . }}
{{- end }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: tenure-{{ $election }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "tenure-sidecar.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: tenure-{{ $election }}
subjects:
- kind: ServiceAccount
  name: {{ include "tenure-sidecar.serviceAccountName" . }}
  namespace: {{ .Release.Namespace }}
{{- if $values.service.enabled }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ .Release.Name }}-leader
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "tenure-sidecar.labels" . | nindent 4 }}
spec:
  selector:
    {{- include "tenure-sidecar.selectorLabels" . | nindent 4 }}
    tenure.dev/leader: "true"
  ports:
  - port: {{ $values.service.port }}
    targetPort: {{ $values.service.targetPort }}
{{- end }}
{{- if $values.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .Release.Name }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "tenure-sidecar.labels" . | nindent 4 }}
spec:
  minAvailable: {{ $values.podDisruptionBudget.minAvailable }}
  selector:
    matchLabels:
      {{- include "tenure-sidecar.selectorLabels" . | nindent 6 }}
{{- end }}
{{- end -}}

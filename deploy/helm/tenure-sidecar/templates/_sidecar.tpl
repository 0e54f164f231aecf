{{/*
The sidecar, as an element of `initContainers` if `native` is true, otherwise of `containers`:

  {{- with include "tenure-sidecar.initContainers" . }}
  initContainers:
  {{- . | nindent 2 }}
  {{- end }}
  containers:
  {{- with include "tenure-sidecar.containers" . }}
  {{- . | nindent 2 }}
  {{- end }}
*/}}
{{- define "tenure-sidecar.initContainers" -}}
{{- if (index .Values "tenure-sidecar").native -}}
{{- include "tenure-sidecar.container" . -}}
{{- end -}}
{{- end -}}

{{- define "tenure-sidecar.containers" -}}
{{- if not (index .Values "tenure-sidecar").native -}}
{{- include "tenure-sidecar.container" . -}}
{{- end -}}
{{- end -}}

{{- define "tenure-sidecar.container" -}}
{{- $values := index .Values "tenure-sidecar" -}}
- name: tenure
  image: {{ include "tenure-sidecar.image" . | quote }}
  imagePullPolicy: {{ $values.image.pullPolicy }}
  {{- if $values.native }}
  restartPolicy: Always
  {{- end }}
  args:
  - elect
  - --election={{ include "tenure-sidecar.election" . }}
  - --http=:{{ $values.port }}
  {{- if ne $values.lock "leases" }}
  - --lock={{ $values.lock }}
  {{- end }}
  {{- if $values.service.enabled }}
  - --label
  {{- end }}
  {{- range $values.args }}
  - {{ . | quote }}
  {{- end }}
  env:
  - name: POD_NAME
    valueFrom:
      fieldRef:
        fieldPath: metadata.name
  - name: POD_NAMESPACE
    valueFrom:
      fieldRef:
        fieldPath: metadata.namespace
  ports:
  - name: leader
    containerPort: {{ $values.port }}
  {{- if $values.native }}
  startupProbe:
    httpGet:
      path: /readyz
      port: leader
    periodSeconds: 1
    failureThreshold: 60
  {{- end }}
  livenessProbe:
    httpGet:
      path: /livez
      port: leader
  # A pod is ready when it has read the election, not when it leads. Otherwise a rolling update would wait forever for a
  # second leader.
  readinessProbe:
    httpGet:
      path: /readyz
      port: leader
  resources:
    {{- toYaml $values.resources | nindent 4 }}
  securityContext:
    {{- include "tenure-sidecar.securityContext" . | nindent 4 }}
{{- end -}}

{{- define "scrimp.labels" -}}
app.kubernetes.io/name: scrimp
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* What a pod depends on and does not mount as itself: settings, and the contents of its Secret and of the bucket's, as they
are in the cluster when the release is made. A changed Secret begins new pods at the next upgrade. */}}
{{- define "scrimp.checksums" -}}
checksum/settings: {{ include (print .root.Template.BasePath "/settings.yaml") .root | sha256sum }}
{{- $contents := list }}
{{- range compact (list .secret .root.Values.objectStore.secret) }}
{{- $contents = append $contents (lookup "v1" "Secret" $.root.Release.Namespace . | default dict).data }}
{{- end }}
checksum/secrets: {{ $contents | toJson | sha256sum }}
{{- end }}

{{/* Where a pod may run. */}}
{{- define "scrimp.placement" -}}
{{- with .runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "scrimp.claim" -}}
{{ .Values.storage.existingClaim | default (printf "%s-storage" .Release.Name) }}
{{- end }}

{{/* A pod's own identity. fsGroup lets the first init container read the Secret's files. */}}
{{- define "scrimp.pod" -}}
automountServiceAccountToken: false
{{- with .Values.images.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: { type: RuntimeDefault }
{{- end }}

{{/* `.becomes`: it begins as root, with the capabilities that it takes along as it becomes the service's user.
`.brokerless`: it needs no broker. */}}
{{- define "scrimp.container" -}}
imagePullPolicy: {{ .Values.images.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  {{- if .becomes }}
  runAsNonRoot: false
  runAsUser: 0
  runAsGroup: 0
  capabilities: { drop: [ALL], add: [SETUID, SETGID, KILL] }
  {{- else }}
  capabilities: { drop: [ALL] }
  {{- end }}
envFrom:
  - configMapRef: { name: {{ .Release.Name }}-settings }
  {{- if not .brokerless }}
  - configMapRef: { name: {{ .Release.Name }}-broker }
  {{- end }}
  {{- with .Values.objectStore.secret }}
  - secretRef: { name: {{ . }} }
  {{- end }}
{{- end }}

{{/* Kubernetes gives a Secret's files to root: readable by the pod's group alone, which the service refuses. This copies
them to memory, owned by the service's user, mode 0400. */}}
{{- define "scrimp.secrets" -}}
- name: secrets
  image: "{{ .Values.images.api.repository }}:{{ .Values.images.api.tag }}"
  imagePullPolicy: {{ .Values.images.pullPolicy }}
  command: [sh, -c, "umask 377 && cp -L /given/* /run/secrets/ && chmod 0400 /run/secrets/*"]
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: { drop: [ALL] }
  resources: { requests: { cpu: 10m, memory: 16Mi }, limits: { memory: 64Mi } }
  volumeMounts:
    - { name: given, mountPath: /given, readOnly: true }
    - { name: secrets, mountPath: /run/secrets }
{{- end }}

{{- define "scrimp.mounts" -}}
- { name: secrets, mountPath: /run/secrets, readOnly: true }
- { name: home, mountPath: /var/lib/scrimp }
{{- if not .Values.objectStore.url }}
- { name: shared, mountPath: /var/lib/scrimp/storage, subPath: storage }
{{- end }}
{{- if not .Values.objectStore.heads }}
- { name: shared, mountPath: /var/lib/scrimp-heads, subPath: heads }
{{- end }}
- { name: tmp, mountPath: /tmp }
{{- if .Values.models.existingClaim }}
- { name: models, mountPath: /var/lib/scrimp-models, readOnly: true }
{{- end }}
{{- end }}

{{/* Of API and ingest workers: uploads, and files that are read. Without a bucket they lie in the storage. */}}
{{- define "scrimp.arrivals" -}}
{{- if .Values.objectStore.url }}
- { name: shared, mountPath: /var/lib/scrimp/storage/arrivals, subPath: arrivals }
{{- end }}
{{- end }}

{{- define "scrimp.volumes" -}}
- { name: secrets, emptyDir: { medium: Memory, sizeLimit: 1Mi } }
- { name: home, emptyDir: {{ if .Values.objectStore.url }}{ sizeLimit: {{ .Values.objectStore.cacheSize }} }{{ else }}{}{{ end }} }
- { name: tmp, emptyDir: {} }
{{- with .Values.models.existingClaim }}
- { name: models, persistentVolumeClaim: { claimName: {{ . }}, readOnly: true } }
{{- end }}
{{- end }}

{{- define "scrimp.shared" -}}
- { name: shared, persistentVolumeClaim: { claimName: {{ include "scrimp.claim" . }} } }
{{- end }}

{{/* A volume with what has no bucket. */}}
{{- define "scrimp.sharedIfNeeded" -}}
{{- if not (and .Values.objectStore.url .Values.objectStore.heads) }}
{{- include "scrimp.shared" . }}
{{- end }}
{{- end }}

{{/* Waits until the database is at this version's migration; the API's pods migrate it. */}}
{{- define "scrimp.wait" -}}
- name: wait
  image: "{{ .Values.images.api.repository }}:{{ .Values.images.api.tag }}"
  command: [sh, -c, "until python -m app.system.health; do sleep 5; done"]
  {{- include "scrimp.container" . | nindent 2 }}
  resources: { requests: { cpu: 100m, memory: 256Mi }, limits: { memory: 512Mi } }
  volumeMounts: {{- include "scrimp.mounts" . | nindent 4 }}
{{- end }}

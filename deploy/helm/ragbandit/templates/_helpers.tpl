{{- define "ragbandit.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "ragbandit.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "ragbandit.secret" -}}
{{ required "existingSecret: name a Secret with the keys DATABASE_URL and REDIS_URL (kubectl create secret generic)" .Values.existingSecret }}
{{- end }}

{{/* The claim that all pods share; empty: snapshots lie at a URL. */}}
{{- define "ragbandit.sharedClaim" -}}
{{- if .Values.sharedData.existingClaim }}{{ .Values.sharedData.existingClaim }}
{{- else if not (regexMatch "^[a-z0-9]+://" (dig "snapshots" "" .Values.config)) }}{{ include "ragbandit.name" . }}-shared{{ end }}
{{- end }}

{{- define "ragbandit.labels" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- define "ragbandit.allLabels" -}}
{{ include "ragbandit.labels" . }}
app.kubernetes.io/version: {{ .root.Values.image.tag | default .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* Seconds that an answer may take: config.budget.seconds. */}}
{{- define "ragbandit.budget" -}}
{{ dig "budget" "seconds" 120 .Values.config | float64 | ceil | int }}
{{- end }}

{{/* The operators' port, which probes and scrapers ask: it has a thread of its own, so a busy pod is not ended. */}}
{{- define "ragbandit.adminPort" -}}
{{ dig "server" "admin_port" 8101 .Values.config | int }}
{{- end }}

{{- define "ragbandit.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "ragbandit.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "ragbandit.environment" -}}
- name: DATABASE_URL
  valueFrom: {secretKeyRef: {name: {{ include "ragbandit.secret" . | quote }}, key: DATABASE_URL}}
- name: REDIS_URL
  valueFrom: {secretKeyRef: {name: {{ include "ragbandit.secret" . | quote }}, key: REDIS_URL}}
{{- range .Values.secretEnv }}
- name: {{ . }}
  valueFrom: {secretKeyRef: {name: {{ include "ragbandit.secret" $ | quote }}, key: {{ . }}}}
{{- end }}
- {name: RAGBANDIT_CONFIG, value: /etc/ragbandit/config.yaml}
- {name: RAGBANDIT_DATA_DIR, value: /data}
- {name: RAGBANDIT_SERVER__HOST, value: "0.0.0.0"}
- {name: RAGBANDIT_SERVER__PORT, value: {{ .Values.service.port | quote }}}
{{- if ne (include "ragbandit.adminPort" .) "0" }}
- {name: RAGBANDIT_SERVER__ADMIN_HOST, value: "0.0.0.0"}
- {name: RAGBANDIT_SERVER__ADMIN_PORT, value: {{ include "ragbandit.adminPort" . | quote }}}
{{- end }}
{{- with .Values.env }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "ragbandit.mounts" -}}
- {name: config, mountPath: /etc/ragbandit, readOnly: true}
- {name: data, mountPath: /data}
- {name: cache, mountPath: /cache}
- {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "ragbandit.volumes" -}}
- name: config
  configMap: {name: {{ include "ragbandit.name" . }}}
- name: data
{{- if include "ragbandit.sharedClaim" . }}
  persistentVolumeClaim: {claimName: {{ include "ragbandit.sharedClaim" . | quote }}}
{{- else }}
  emptyDir: {}
{{- end }}
- name: cache
{{- if .Values.cache.existingClaim }}
  persistentVolumeClaim: {claimName: {{ .Values.cache.existingClaim | quote }}}
{{- else }}
  emptyDir: {}
{{- end }}
- name: tmp
  emptyDir: {}
{{- end }}

{{/* Probes of the service. Alive asks nothing but the process; ready asks the database; the start loads a model. */}}
{{- define "ragbandit.httpProbes" -}}
{{- $port := ternary "http" "admin" (eq (include "ragbandit.adminPort" .root) "0") -}}
startupProbe:
  httpGet: {path: /health, port: {{ $port }}, httpHeaders: [{name: Host, value: localhost}]}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ div (add .values.startupSeconds 4) 5 }}
livenessProbe:
  httpGet: {path: /health, port: {{ $port }}, httpHeaders: [{name: Host, value: localhost}]}
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 5
readinessProbe:
  httpGet: {path: /ready, port: {{ $port }}, httpHeaders: [{name: Host, value: localhost}]}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
{{- end }}

{{/* Probes of a worker: a file that it touches every 5 s once everything is loaded. They ask neither SQL nor Redis. */}}
{{- define "ragbandit.fileProbes" -}}
startupProbe:
  exec: {command: [test, -f, /tmp/alive]}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ div (add .values.startupSeconds 4) 5 }}
livenessProbe:
  exec: {command: [sh, -c, 'test -n "$(find /tmp/alive -mmin -1)"']}
  periodSeconds: 30
  timeoutSeconds: 10
  failureThreshold: 4
readinessProbe:
  exec: {command: [test, -f, /tmp/alive]}
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 3
{{- end }}

{{/* A pod of the part: root, part, values, command, grace. */}}
{{- define "ragbandit.pod" -}}
metadata:
  labels:
    {{- include "ragbandit.allLabels" . | nindent 4 }}
  annotations:
    checksum/config: {{ toYaml .root.Values.config | sha256sum }}
    {{- with .values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  automountServiceAccountToken: false
  {{- with .root.Values.serviceAccountName }}
  serviceAccountName: {{ . }}
  {{- end }}
  # otherwise Kubernetes sets variables such as RAGBANDIT_PORT, which would be read as settings
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ .grace }}
  {{- with .root.Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "ragbandit.podSecurity" . | nindent 4 }}
  initContainers:
    - name: wait-for-schema
      image: {{ include "ragbandit.image" .root | quote }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      command: [ragbandit, migrate, --wait, {{ .root.Values.migrate.waitSeconds | quote }}]
      env:
        {{- include "ragbandit.environment" .root | nindent 8 }}
      securityContext:
        {{- include "ragbandit.containerSecurity" . | nindent 8 }}
      resources:
        {{- toYaml .root.Values.migrate.resources | nindent 8 }}
      volumeMounts:
        {{- include "ragbandit.mounts" . | nindent 8 }}
  containers:
    - name: {{ .part }}
      image: {{ include "ragbandit.image" .root | quote }}
      imagePullPolicy: {{ .root.Values.image.pullPolicy }}
      command: {{ toJson .command }}
      env:
        {{- include "ragbandit.environment" .root | nindent 8 }}
      {{- if eq .part "service" }}
      ports:
        - {name: http, containerPort: {{ .root.Values.service.port }}}
        {{- if ne (include "ragbandit.adminPort" .root) "0" }}
        - {name: admin, containerPort: {{ include "ragbandit.adminPort" .root }}}
        {{- end }}
      lifecycle:
        preStop: {exec: {command: [sleep, "5"]}} # until load balancers send no more requests to this pod
      {{- include "ragbandit.httpProbes" . | nindent 6 }}
      {{- else }}
      {{- include "ragbandit.fileProbes" . | nindent 6 }}
      {{- end }}
      securityContext:
        {{- include "ragbandit.containerSecurity" . | nindent 8 }}
      resources:
        {{- toYaml .values.resources | nindent 8 }}
      volumeMounts:
        {{- include "ragbandit.mounts" . | nindent 8 }}
  volumes:
    {{- include "ragbandit.volumes" .root | nindent 4 }}
  {{- with .values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* A Deployment of the part: as for the pod, with replicas ("" leaves them to an autoscaler) and strategy. */}}
{{- define "ragbandit.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "ragbandit.name" .root }}-{{ .part }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "ragbandit.allLabels" . | nindent 4 }}
spec:
  {{- if ne (toString .replicas) "" }}
  replicas: {{ .replicas }}
  {{- end }}
  strategy:
    {{- toYaml .strategy | nindent 4 }}
  selector:
    matchLabels:
      {{- include "ragbandit.labels" . | nindent 6 }}
  template:
    {{- include "ragbandit.pod" . | nindent 4 }}
{{- end }}

{{- define "ragbandit.disruption" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "ragbandit.name" .root }}-{{ .part }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "ragbandit.allLabels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels:
      {{- include "ragbandit.labels" . | nindent 6 }}
{{- end }}

{{- define "ragbandit.scaler" -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ include "ragbandit.name" .root }}-{{ .part }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "ragbandit.allLabels" . | nindent 4 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ include "ragbandit.name" .root }}-{{ .part }}}
  minReplicas: {{ .values.autoscaling.minReplicas }}
  maxReplicas: {{ .values.autoscaling.maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target: {type: Utilization, averageUtilization: {{ .values.autoscaling.targetCPUUtilizationPercentage }}}
{{- end }}

{{- define "fairlead.labels" -}}
app.kubernetes.io/name: fairlead
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "fairlead.image" -}}
image: {{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{- /* The environment in which client libraries look for the API server. */ -}}
{{- define "fairlead.apiServer" -}}
{{- if .Values.apiServer.host }}
- {name: KUBERNETES_SERVICE_HOST, value: {{ .Values.apiServer.host | quote }}}
- {name: KUBERNETES_SERVICE_PORT, value: {{ .Values.apiServer.port | quote }}}
{{- end }}
{{- end }}

{{- /* An agent's view of its node: the paths are those of the node. */ -}}
{{- define "fairlead.nodeMounts" -}}
- {name: config, mountPath: /etc/fairlead, readOnly: true}
- {name: run, mountPath: /run/fairlead}
- {name: state, mountPath: /var/lib/fairlead}
# Pinned programs outlive the agent; a file system that the agent mounts is the node's.
- {name: bpf, mountPath: /sys/fs/bpf, mountPropagation: Bidirectional}
# Namespaces of pods that are made while the agent runs.
- {name: netns, mountPath: /run/netns, mountPropagation: HostToContainer}
{{- if eq .Values.agent.plane "ovs" }}
- {name: openvswitch, mountPath: /var/run/openvswitch}
{{- end }}
{{- end }}

{{- define "fairlead.nodeVolumes" -}}
- {name: config, configMap: {name: fairlead}}
- {name: run, hostPath: {path: /run/fairlead, type: DirectoryOrCreate}}
- {name: state, hostPath: {path: /var/lib/fairlead, type: DirectoryOrCreate}}
- {name: bpf, hostPath: {path: /sys/fs/bpf, type: DirectoryOrCreate}}
- {name: netns, hostPath: {path: /run/netns, type: DirectoryOrCreate}}
- {name: cni-bin, hostPath: {path: {{ .Values.cni.binDir }}, type: DirectoryOrCreate}}
- {name: cni-conf, hostPath: {path: {{ .Values.cni.confDir }}, type: DirectoryOrCreate}}
{{- if eq .Values.agent.plane "ovs" }}
- {name: openvswitch, hostPath: {path: {{ .Values.agent.ovsRunDir }}, type: Directory}}
{{- end }}
{{- end }}

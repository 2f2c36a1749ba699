package conformance

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

const (
	// wrapperName is the name under which the test binary is a CNI plugin.
	wrapperName = "bridge"
	// faultVariable names the fault that the plugin shall have.
	faultVariable = "CONFORMANCE_FAULT"
)

// wrappedCall is one execution of the plugin that the test binary is under the name
// of wrapperName: the reference plugin, which speaks 1.0.0, lifted to 1.1.0.
type wrappedCall struct {
	config     []byte
	anyVersion bool // take every version for 1.0.0
	out        []byte
	exit       int
}

// wrapperMain is the plugin's main and returns its exit status.
func wrapperMain() int {
	config, err := io.ReadAll(os.Stdin)
	if err != nil {
		return 2
	}
	c := &wrappedCall{config: config}
	f := faults()[os.Getenv(faultVariable)]
	if f.before == nil || !f.before(c) {
		c.serve()
	}
	if f.after != nil {
		f.after(c)
	}
	if _, err := os.Stdout.Write(c.out); err != nil {
		return 2
	}
	return c.exit
}

// serve answers a call as it should be.
func (c *wrappedCall) serve() {
	switch os.Getenv("CNI_COMMAND") {
	case "VERSION":
		c.real()
		c.out = bytes.Replace(c.out, []byte(`"1.0.0"]`), []byte(`"1.0.0","1.1.0"]`), 1)
	case "STATUS":
	case "GC":
		var list struct {
			Valid []types.GCAttachment `json:"cni.dev/valid-attachments"`
		}
		if json.Unmarshal(c.config, &list) != nil {
			c.refuse("no list")
			return
		}
		c.collect(list.Valid)
	default:
		c.real()
	}
}

// real executes the reference plugin, with more variables, and takes its answer.
func (c *wrappedCall) real(env ...string) {
	config, lifted := c.lower()
	var stdout bytes.Buffer
	cmd := exec.Command(filepath.Join(referenceDir, wrapperName))
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(config), &stdout, os.Stderr
	_ = cmd.Run()
	c.out, c.exit = stdout.Bytes(), cmd.ProcessState.ExitCode()
	if lifted && c.exit == 0 && len(c.out) > 0 {
		c.edit("cniVersion", "1.1.0")
	}
}

// lower returns the configuration in 1.0.0 if it is in 1.1.0, and whether it was.
func (c *wrappedCall) lower() (config []byte, lifted bool) {
	var keys map[string]json.RawMessage
	if json.Unmarshal(c.config, &keys) != nil || string(keys["cniVersion"]) != `"1.1.0"` && !c.anyVersion {
		return c.config, false
	}
	keys["cniVersion"] = json.RawMessage(`"1.0.0"`)
	if prev := string(keys["prevResult"]); prev != "" {
		keys["prevResult"] = json.RawMessage(strings.Replace(prev, `"cniVersion":"1.1.0"`, `"cniVersion":"1.0.0"`, 1))
	}
	config, err := json.Marshal(keys)
	if err != nil {
		return c.config, false
	}
	return config, true
}

// edit sets one key of the answer.
func (c *wrappedCall) edit(key, value string) {
	var keys map[string]json.RawMessage
	if json.Unmarshal(c.out, &keys) != nil {
		return
	}
	keys[key], _ = json.Marshal(value)
	c.out, _ = json.Marshal(keys)
}

// refuse answers with an error. It returns true, so that it can end an answer.
func (c *wrappedCall) refuse(msg string) bool {
	c.out, c.exit = []byte(`{"cniVersion":"1.1.0","code":100,"msg":"`+msg+`"}`), 1
	return true
}

// held returns host-local's files: path to "container id, CRLF, interface".
func (c *wrappedCall) held() map[string]string {
	var conf struct {
		Name string `json:"name"`
	}
	_ = json.Unmarshal(c.config, &conf)
	files, _ := filepath.Glob("/var/lib/cni/networks/" + conf.Name + "/*[.:]*")
	held := map[string]string{}
	for _, path := range files {
		if owner, err := os.ReadFile(path); err == nil && strings.Contains(string(owner), "\r\n") {
			held[path] = string(owner)
		}
	}
	return held
}

// collect sends a DEL for every attachment that is not valid.
func (c *wrappedCall) collect(valid []types.GCAttachment) {
	for _, owner := range c.held() {
		id, ifName, _ := strings.Cut(owner, "\r\n")
		if !slices.Contains(valid, types.GCAttachment{ContainerID: id, IfName: ifName}) {
			c.real("CNI_COMMAND=DEL", "CNI_NETNS=", "CNI_CONTAINERID="+id, "CNI_IFNAME="+ifName)
		}
	}
	c.out, c.exit = nil, 0
}

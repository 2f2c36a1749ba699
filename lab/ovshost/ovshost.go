package ovshost

import (
	"bytes"
	"crypto/sha1"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/fairlead-sdn/fairlead/lab/process"
)

// Schema is where packages of Open vSwitch put the schema of its database.
const Schema = "/usr/share/openvswitch/vswitch.ovsschema"

const (
	serverProgram = "ovsdb-server"
	switchProgram = "ovs-vswitchd"
)

// Host says where an Open vSwitch keeps its files.
type Host struct {
	// Run is the directory of sockets and pid files. A unix socket's path has at
	// most 107 bytes: keep it short.
	Run string
	// Data is the directory of the database.
	Data string
}

// Installed returns an error that says what of Open vSwitch this machine lacks.
func Installed() error {
	var missing []string
	for _, name := range []string{serverProgram, switchProgram} {
		if _, err := program(name); err != nil {
			missing = append(missing, name)
		}
	}
	if _, err := os.Stat(Schema); err != nil {
		missing = append(missing, Schema)
	}
	if missing != nil {
		return fmt.Errorf("this machine has no Open vSwitch, %s missing: install the package openvswitch-switch", strings.Join(missing, ", "))
	}
	return nil
}

// program finds a daemon, also where the PATH of ordinary users does not lead.
func program(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/usr/local/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("find %s: %w", name, err)
}

// Database is the path of the socket on which the database is served.
func (h Host) Database() string { return filepath.Join(h.Run, "db.sock") }

// Management is the path of the socket on which a bridge takes OpenFlow.
func (h Host) Management(bridge string) string { return filepath.Join(h.Run, bridge+".mgmt") }

func (h Host) file() string { return filepath.Join(h.Data, "conf.db") }

// Prepare makes the directories, and an empty database if there is none.
func (h Host) Prepare() error {
	for _, dir := range []string{h.Run, h.Data} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("prepare Open vSwitch: %w", err)
		}
	}
	if _, err := os.Stat(h.file()); err == nil {
		return nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("prepare Open vSwitch: %w", err)
	}
	return h.Wipe()
}

// Wipe replaces the database by an empty one. ovsdb-server must not be running.
func (h Host) Wipe() error {
	schema, err := os.ReadFile(Schema)
	if err != nil {
		return fmt.Errorf("make an empty database: %w", err)
	}
	record, err := record(schema)
	if err != nil {
		return fmt.Errorf("make an empty database of %s: %w", Schema, err)
	}
	// A server that opens the file sees the old or the new, never a half.
	next := h.file() + ".new"
	if err := os.WriteFile(next, record, 0o640); err != nil {
		return fmt.Errorf("make an empty database: %w", err)
	}
	if err := os.Rename(next, h.file()); err != nil {
		return fmt.Errorf("make an empty database: %w", err)
	}
	return nil
}

// record is the schema as the first record of a standalone database file, whose
// format is that of ovsdb(5): a line with length and SHA-1, then the JSON.
func record(schema []byte) ([]byte, error) {
	var body bytes.Buffer
	if err := json.Compact(&body, schema); err != nil {
		return nil, err
	}
	body.WriteByte('\n')
	head := fmt.Sprintf("OVSDB JSON %d %x\n", body.Len(), sha1.Sum(body.Bytes()))
	return append([]byte(head), body.Bytes()...), nil
}

// DatabaseServer is the command of ovsdb-server. It stays in the foreground and logs
// to its standard error. Its user sets the network namespace and the files.
func (h Host) DatabaseServer() (process.Command, error) {
	return h.command(serverProgram, h.file(), "--remote=punix:"+h.Database())
}

// Switch is the command of ovs-vswitchd. It waits for the database by itself, so
// the order of the starts does not matter.
func (h Host) Switch() (process.Command, error) {
	return h.command(switchProgram, "unix:"+h.Database())
}

func (h Host) command(name string, args ...string) (process.Command, error) {
	path, err := program(name)
	if err != nil {
		return process.Command{}, err
	}
	args = append([]string{name}, append(args, "--pidfile", "--no-chdir", "-vconsole:info", "-vsyslog:off", "-vfile:off")...)
	return process.Command{Path: path, Args: args, Env: h.Env(), Dir: h.Run}, nil
}

// Env are the environment variables that lead the programs of Open vSwitch
// (ovs-vsctl, ovs-ofctl, ovs-appctl) to this one.
func (h Host) Env() []string {
	return []string{
		"OVS_RUNDIR=" + h.Run, "OVS_DBDIR=" + h.Data, "OVS_LOGDIR=" + h.Run, "OVS_SYSCONFDIR=" + h.Data,
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	}
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/fairlead-sdn/fairlead/lab"
)

// conflists of what is compared: both give a pod an address, a default route, and
// masquerade what leaves.
const (
	oursConflist = `{"cniVersion":"1.0.0","name":"bench-fairlead","plugins":[{"type":"fairlead-cni","standalone":true}]}`
	baseConflist = `{"cniVersion":"1.0.0","name":"bench-bridge","plugins":[{"type":"bridge","bridge":"flbench0","isGateway":true,"ipMasq":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.210.0.0/16"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}`
	referencePlugins = "/usr/lib/cni"
)

// Targets of whole calls, as shares of the baseline's.
const (
	addWall = 0.25
	addCPU  = 0.20
	delWall = 0.25
)

// calls are the measurements of one kind of plugin. CPU is that of a call in a
// crowd: all of it, divided by the calls.
type calls struct {
	Add, Del       samples
	AddCPU, DelCPU samples
}

// nodeReport is what the driver in the node prints.
type nodeReport struct{ Ours, Base, Again calls }

// benchCNI drives both plugins inside one node of a lab, in turn.
func benchCNI(ctx context.Context, e *environment) ([]figure, error) {
	if _, err := os.Stat(referencePlugins + "/bridge"); err != nil {
		return nil, fmt.Errorf("the reference plugins are missing: %w; install containernetworking-plugins", err)
	}
	l, err := e.lab(ctx)
	if err != nil {
		return nil, err
	}
	var figures []figure
	for _, at := range []struct{ parallel, rounds int }{{1, 40}, {10, 10}, {50, 4}} {
		var r nodeReport
		err := driveFromHere(ctx, l, &r, driveCalls, e.bin, strconv.Itoa(at.parallel), strconv.Itoa(e.rounds(at.rounds)))
		if err != nil {
			return figures, fmt.Errorf("%d in parallel: %w", at.parallel, err)
		}
		name := func(what string) string { return fmt.Sprintf("%s, %d in parallel", what, at.parallel) }
		most := func(limit float64) target { return target{limit: limit, ratio: true} }
		figures = append(figures,
			figure{name: name("ADD wall"), ours: r.Ours.Add, base: r.Base.Add, again: r.Again.Add, target: most(addWall)},
			figure{name: name("ADD wall p99"), at: 0.99, ours: r.Ours.Add, base: r.Base.Add, again: r.Again.Add, target: most(addWall)},
			figure{name: name("ADD CPU"), ours: r.Ours.AddCPU, base: r.Base.AddCPU, again: r.Again.AddCPU, target: most(addCPU)},
			figure{name: name("DEL wall"), ours: r.Ours.Del, base: r.Base.Del, again: r.Again.Del, target: most(delWall)},
			figure{name: name("DEL wall p99"), at: 0.99, ours: r.Ours.Del, base: r.Base.Del, again: r.Again.Del, target: most(delWall)},
			figure{name: name("DEL CPU"), ours: r.Ours.DelCPU, base: r.Base.DelCPU, again: r.Again.DelCPU},
		)
	}
	return figures, nil
}

// driveFromHere runs this program inside a node and reads what it prints.
func driveFromHere(ctx context.Context, l *lab.Lab, into any, args ...string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	found, write, err := collect()
	if err != nil {
		return err
	}
	said, errWrite, err := collect()
	if err != nil {
		return errors.Join(err, write.Close())
	}
	exit, err := l.Exec(ctx, lab.ExecRequest{
		Node: "node-1", Stdout: write, Stderr: errWrite, Command: append([]string{self, nodeRole}, args...),
	})
	err = errors.Join(err, write.Close(), errWrite.Close())
	out, words := <-found, <-said
	switch {
	case err != nil:
		return err
	case exit != 0:
		return fmt.Errorf("the driver in the node ended with status %d: %s", exit, words)
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("read what the driver in the node found: %w", err)
	}
	return nil
}

// collect is a pipe whose content arrives on a channel once its last writer is gone.
func collect() (<-chan []byte, *os.File, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	all := make(chan []byte, 1)
	go func() {
		defer read.Close()
		b, _ := io.ReadAll(read) // what there is
		all <- b
	}()
	return all, write, nil
}

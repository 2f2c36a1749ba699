package main

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-sdn/fairlead/internal/config"
	"github.com/fairlead-sdn/fairlead/internal/serve/socket"
)

// An agent that runs would put back what an uninstall removes: it is waited for, and kept
// from starting again.
func TestUninstallWaitsForTheAgent(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	c := config.Agent{RunDir: t.TempDir()}
	agent, err := socket.Listen(filepath.Join(c.RunDir, "cni.sock"), "CNI", log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := noAgent(ctx, c, log); err == nil || !strings.Contains(err.Error(), "another fairlead-agent serves the CNI socket") {
		t.Errorf("while an agent runs: %v", err)
	}

	ended := make(chan error, 1)
	go func() { ended <- errors.Join(agent.Close(), agent.Remove()) }()
	done, err := noAgent(t.Context(), c, log)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if _, err := socket.Listen(filepath.Join(c.RunDir, "cni.sock"), "CNI", log); err == nil {
		t.Error("an agent starts while the node is uninstalled")
	}
	if err := done(); err != nil {
		t.Fatal(err)
	}
	next, err := socket.Listen(filepath.Join(c.RunDir, "cni.sock"), "CNI", log)
	if err != nil {
		t.Fatalf("afterwards: %v", err)
	}
	if err := errors.Join(next.Close(), next.Remove()); err != nil {
		t.Error(err)
	}
}

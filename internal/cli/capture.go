package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/fairlead-sdn/fairlead/internal/apply/capture"
	"github.com/fairlead-sdn/fairlead/internal/cli/usage"
	"github.com/fairlead-sdn/fairlead/internal/datastore"
	"github.com/fairlead-sdn/fairlead/internal/serve/admin"
)

func (a *app) captureCommand() *cobra.Command {
	var file, namespace string
	var q admin.Capture
	cmd := &cobra.Command{
		Use: "capture POD [FILTER…] -o FILE|-", Short: "Write a pod's packets to a pcap file as they come", Args: usage.Arguments(1, -1),
		Long: `Write a pod's packets to a pcap file as they come, until interrupted or until a limit is
reached. What the pod sends is seen before any policy is asked, what it gets after.

FILTER is made of "[src|dst] host ADDRESS", "[src|dst] net CIDR", "[src|dst] port N[-M]", "proto N",
ip, ip6, arp, tcp, udp, sctp, icmp, icmp6, joined by and, or, not and parentheses. The node's
kernel asks it, so only what is wanted leaves the node.`,
		Example: "  fairlead capture shop/web tcp port 80 -o web.pcap\n  fairlead capture shop/web -o - | tcpdump -nr -",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return a.completeNames(cmd.Context(), datastore.KindPod)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&file, "output", "o", "", "file to write, which must not exist unless it is a device or a pipe; - is standard output")
	f.StringVarP(&namespace, "namespace", "n", "", "namespace of POD if it names none (default: the context's, or \"default\")")
	f.StringVar(&q.Interface, "interface", "", "interface in the pod, if it has several")
	f.IntVar(&q.Snap, "snap", 0, "keep only so many bytes of each packet (default: all)")
	f.Uint64Var(&q.Packets, "packets", 0, "end after so many packets")
	f.DurationVar(&q.For, "for", 0, "end after this time (default: an hour, which is the most)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		q.Filter = strings.Join(args[1:], " ")
		switch {
		case file == "":
			return usagef("say where to write with -o FILE (- is standard output)")
		case file == "-" && a.terminal:
			return usagef("standard output is a terminal: give a FILE, or pipe it into a program")
		case q.Snap < 0 || q.For < 0:
			return usagef("--snap and --for take nothing negative: want a number of bytes and a duration, such as --snap 128 --for 30s")
		case q.For > admin.CaptureAtMost:
			return usagef("--for is %s at most", admin.CaptureAtMost)
		}
		// Whether the agent understands it is not to be found out over the network.
		if _, err := capture.ParseFilter(q.Filter); err != nil {
			return usageError(err)
		}
		pod, err := a.findPod(cmd.Context(), namespace, args[0])
		if err != nil {
			return err
		}
		q.Namespace, q.Pod = pod.Namespace, pod.Name
		return a.capture(cmd.Context(), pod.Spec.NodeName, q, file)
	}
	return cmd
}

// findPod reads a pod that is on a node and on Fairlead's network.
func (a *app) findPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	key, err := a.keyFor(datastore.KindPod, namespace, name)
	if err != nil {
		return nil, err
	}
	var pod *corev1.Pod
	err = a.withStore(ctx, func(ctx context.Context, s datastore.Store) error {
		o, err := s.Get(ctx, datastore.KindPod, key)
		switch {
		case apierrors.IsNotFound(err):
			return fmt.Errorf("%w in namespace %s (fairlead get pods lists them)", err, key.Namespace)
		case err != nil:
			return err
		}
		pod, _ = o.(*corev1.Pod)
		return nil
	})
	switch {
	case err != nil:
		return nil, err
	case pod == nil || pod.Spec.NodeName == "":
		return nil, fmt.Errorf("pod %s is bound to no node yet", key)
	case pod.Spec.HostNetwork:
		return nil, fmt.Errorf("pod %s is in the network of its node %s: it has no link of its own", key, pod.Spec.NodeName)
	}
	return pod, nil
}

// capture copies what the agent of a node sees to a file.
func (a *app) capture(ctx context.Context, node string, q admin.Capture, file string) (err error) {
	agents, err := a.agents(ctx, []string{node})
	if err != nil {
		return err
	}
	defer agents[0].client.Close()
	// Packets are no text: the way that keeps control characters from terminals is not theirs.
	out := &counting{w: a.out}
	if file != "-" {
		f, made, err := createOutput(file)
		if err != nil {
			return fmt.Errorf("write the capture: %w", err)
		}
		defer func() {
			err = errors.Join(err, f.Close())
			if made && out.n == 0 {
				err = errors.Join(err, os.Remove(file))
			}
		}()
		out.w = f
	}
	fmt.Fprintf(a.err, "capturing on pod %s/%s of node %s: interrupt to end\n", q.Namespace, q.Pod, node)
	note, err := agents[0].client.Stream(ctx, q.Path(), &capture.Whole{W: out})
	switch {
	case errors.Is(err, admin.ErrStopped):
		fmt.Fprintf(a.err, "interrupted; %s written\n", count(int(out.n), "byte was", "bytes were"))
		return nil
	case err != nil:
		return fmt.Errorf("node %s: %w", node, err)
	}
	fmt.Fprintln(a.err, note)
	return nil
}

// createOutput makes a file, or opens one that there is if it holds nothing that could
// be lost: a device, or a pipe that somebody reads. Only what was made is to be removed.
func createOutput(file string) (f *os.File, made bool, err error) {
	info, err := os.Stat(file)
	if err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		// Without O_NONBLOCK a pipe that nobody reads could not be interrupted.
		f, err = os.OpenFile(file, os.O_WRONLY|unix.O_NONBLOCK, 0)
		return f, false, err
	}
	f, err = os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		err = fmt.Errorf("%w, and is not overwritten: choose another name", err)
	}
	return f, true, err
}

// counting counts what it writes.
type counting struct {
	w io.Writer
	n int64
}

func (c *counting) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

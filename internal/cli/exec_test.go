package cli

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Everything behind the place is the command's, its flags too.
func TestCommandOf(t *testing.T) {
	for _, tc := range []struct{ args, want []string }{
		{[]string{"ip", "-br", "link"}, []string{"ip", "-br", "link"}},
		{[]string{"--", "ip", "-br", "link"}, []string{"ip", "-br", "link"}},
		{[]string{"--", "echo", "--"}, []string{"echo", "--"}},
	} {
		cmd := (&app{}).labExec()
		if err := cmd.ParseFlags(append([]string{"demo/web-0"}, tc.args...)); err != nil {
			t.Fatal(err)
		}
		args := cmd.Flags().Args()
		if err := cmd.ValidateArgs(args); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(tc.want, commandOf(args[1:])); d != "" {
			t.Errorf("%q (-want +got):\n%s", tc.args, d)
		}
	}
}

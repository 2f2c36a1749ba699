package process

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Output runs a command to its end with stdin as its input and returns what it
// printed on standard output and standard error. It is killed when ctx ends.
func (t *Table) Output(ctx context.Context, c Command, stdin []byte) (stdout, stderr []byte, exit int, err error) {
	var pipes [3][2]*os.File // read end, write end
	defer func() {
		for _, p := range pipes {
			for _, f := range p {
				if f != nil {
					f.Close()
				}
			}
		}
	}()
	for i := range pipes {
		if pipes[i][0], pipes[i][1], err = os.Pipe(); err != nil {
			return nil, nil, -1, fmt.Errorf("start %s: %w", c.Path, err)
		}
	}
	c.Files = append([]*os.File{pipes[0][0], pipes[1][1], pipes[2][1]}, c.Files...)
	p, err := t.Start(c)
	if err != nil {
		return nil, nil, -1, err
	}
	for _, f := range []**os.File{&pipes[0][0], &pipes[1][1], &pipes[2][1]} {
		(*f).Close()
		*f = nil
	}
	read := make([]chan []byte, 2)
	for i := range read {
		read[i] = make(chan []byte, 1)
		go func(f *os.File, out chan<- []byte) {
			var b bytes.Buffer
			// What arrived before an error is the answer: the exit status tells the rest.
			_, _ = io.Copy(&b, io.LimitReader(f, 4<<20))
			out <- b.Bytes()
		}(pipes[i+1][0], read[i])
	}
	written := make(chan struct{})
	go func(f *os.File) {
		defer close(written)
		// A command that does not read its input is not an error of ours.
		_, _ = f.Write(stdin)
		f.Close()
	}(pipes[0][1])
	pipes[0][1] = nil
	select {
	case <-p.Done():
	case <-ctx.Done():
		if err := p.Signal(unix.SIGKILL); err != nil {
			return nil, nil, -1, err
		}
		<-p.Done()
		err = fmt.Errorf("%s: %w", c.Path, ctx.Err())
		// A grandchild may hold the pipes open: do not wait for it.
		pipes[1][0].Close()
		pipes[2][0].Close()
	}
	<-written
	stdout, stderr = <-read[0], <-read[1]
	exit, _ = p.Exit()
	return stdout, stderr, exit, err
}

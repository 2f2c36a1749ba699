package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-sdn/fairlead/lab/netspace"
)

// Traffic is made by one thread that plays both ends, one after the other, on
// sockets in two network namespaces. The kernel forwards a packet between namespaces
// of one machine in the context of its sender, so a round trip is one stretch of
// work on one CPU: its duration and its CPU time are the cost of the path, and no
// scheduler, nor anybody else's load, comes into the median.

// chunk is how much a stream carries in one operation.
const chunk = 64 << 10

// endpoints are two pods' namespaces and the server's address.
type endpoints struct {
	client, server *os.File
	addr           netip.Addr
	// forwarders are processes whose CPU time is part of the cost, for they forward in
	// userspace: then an operation is waited for.
	forwarders []int
}

// connection is both ends of a TCP connection.
type connection struct{ client, server int }

func (c connection) close() {
	unix.Close(c.client)
	unix.Close(c.server)
}

// listener is a listening TCP socket in the server's namespace.
func (e *endpoints) listener() (fd int, to *unix.SockaddrInet4, err error) {
	err = netspace.Do(e.server, func() error {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		err = errors.Join(unix.Bind(fd, &unix.SockaddrInet4{}), unix.Listen(fd, 128))
		if err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		return nil
	})
	if err != nil {
		return 0, nil, fmt.Errorf("listen: %w", err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return 0, nil, errors.Join(fmt.Errorf("listen: %w", err), unix.Close(fd))
	}
	return fd, &unix.SockaddrInet4{Addr: e.addr.As4(), Port: name.(*unix.SockaddrInet4).Port}, nil
}

// connect makes a connection; the calling thread is in the client's namespace.
func connect(listener int, to *unix.SockaddrInet4) (connection, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return connection{}, fmt.Errorf("connect: %w", err)
	}
	// A path that drops packets fails soon instead of after minutes.
	err = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 5000)
	if err == nil {
		err = unix.Connect(fd, to)
	}
	if err != nil {
		return connection{}, errors.Join(fmt.Errorf("connect to %v: %w", netip.AddrFrom4(to.Addr), err), unix.Close(fd))
	}
	server, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
	if err != nil {
		return connection{}, errors.Join(fmt.Errorf("accept: %w", err), unix.Close(fd))
	}
	return connection{fd, server}, nil
}

// connections makes n connections that carry small packets at once.
func (e *endpoints) connections(n int) ([]connection, error) {
	fd, to, err := e.listener()
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var list []connection
	err = netspace.Do(e.client, func() error {
		for range n {
			c, err := connect(fd, to)
			if err != nil {
				return err
			}
			list = append(list, c)
			for _, end := range []int{c.client, c.server} {
				err := errors.Join(unix.SetsockoptInt(end, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), unix.SetNonblock(end, true))
				if err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		for _, c := range list {
			c.close()
		}
		return nil, err
	}
	return list, nil
}

// load is something that can be done over a path, again and again, on a thread in
// the client's namespace.
type load struct {
	endpoints
	once  func() error
	close func()
}

// newLoad makes one of the loads.
type newLoad func(endpoints) (*load, error)

// streams move a chunk over each of n connections at once.
func streams(n int) newLoad {
	return func(e endpoints) (*load, error) {
		list, err := e.connections(n)
		if err != nil {
			return nil, err
		}
		buf := make([]byte, chunk)
		closing := func() {
			for _, c := range list {
				c.close()
			}
		}
		left := make([]transfer, n)
		return &load{e, func() error {
			for i := range left {
				left[i] = transfer{chunk, chunk}
			}
			return move(list, left, buf)
		}, closing}, nil
	}
}

// transfer is what is still to be written and to be read.
type transfer struct{ write, read int }

// move writes and reads until nothing is left on any connection.
func move(list []connection, left []transfer, buf []byte) error {
	for {
		busy, progress := false, false
		for i, c := range list {
			t := &left[i]
			if t.write > 0 {
				n, err := again(unix.Write(c.client, buf[:t.write]))
				if err != nil {
					return fmt.Errorf("write: %w", err)
				}
				t.write -= n
				progress = progress || n > 0
			}
			if t.read > 0 {
				n, err := again(unix.Read(c.server, buf[:t.read]))
				if err != nil {
					return fmt.Errorf("read: %w", err)
				}
				t.read -= n
				progress = progress || n > 0
			}
			busy = busy || t.read > 0
		}
		if !busy {
			return nil
		}
		if !progress {
			if err := awaitData(list); err != nil {
				return err
			}
		}
	}
}

// again takes "try again" for nothing done, and the end of a stream for an error.
func again(n int, err error) (int, error) {
	switch {
	case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
		return 0, nil
	case err == nil && n == 0:
		return 0, errors.New("the connection has ended")
	}
	return n, err
}

// awaitData waits until some server can read.
func awaitData(list []connection) error {
	fds := make([]unix.PollFd, len(list))
	for i, c := range list {
		fds[i] = unix.PollFd{Fd: int32(c.server), Events: unix.POLLIN}
	}
	n, err := unix.Poll(fds, 5000)
	if err == nil && n == 0 {
		return errors.New("no data arrives for 5 s")
	}
	if errors.Is(err, unix.EINTR) {
		return nil
	}
	return err
}

// requests send a byte and get one back.
func requests(e endpoints) (*load, error) {
	list, err := e.connections(1)
	if err != nil {
		return nil, err
	}
	there := list[0]
	back := connection{client: there.server, server: there.client}
	buf := make([]byte, 1)
	left := make([]transfer, 1)
	return &load{e, func() error {
		for _, c := range []connection{there, back} {
			left[0] = transfer{1, 1}
			if err := move([]connection{c}, left, buf); err != nil {
				return err
			}
		}
		return nil
	}, there.close}, nil
}

// dials open a connection and close it.
func dials(e endpoints) (*load, error) {
	fd, to, err := e.listener()
	if err != nil {
		return nil, err
	}
	return &load{e, func() error {
		c, err := connect(fd, to)
		if err == nil {
			c.close()
		}
		return err
	}, func() { unix.Close(fd) }}, nil
}

// cost is what a load's operations took.
type cost struct{ wall, cpu samples }

// batch does the load so many times and adds to the cost: every operation's
// duration, and the CPU time of one on average.
func (l *load) batch(ctx context.Context, n int, into *cost) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return netspace.Do(l.client, func() error {
		before, err := l.used()
		if err != nil {
			return err
		}
		for range n {
			start := time.Now()
			if err := l.once(); err != nil {
				return err
			}
			into.wall.add(time.Since(start))
		}
		after, err := l.used()
		into.cpu.add((after - before) / time.Duration(n))
		return err
	})
}

// used is the CPU time of the calling thread and of all forwarders so far.
func (l *load) used() (time.Duration, error) {
	sum, err := threadCPU()
	for _, pid := range l.forwarders {
		if err != nil {
			return 0, err
		}
		var more time.Duration
		more, err = processCPU(pid)
		sum += more
	}
	return sum, err
}

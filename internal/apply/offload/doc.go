// Package offload turns a link's transmit offloads off, by the ioctl of ethtool(8). The
// kernel then computes every checksum and cuts every segment before a frame reaches the
// link, as whoever takes frames in userspace expects.
package offload

package capture

import (
	"encoding/binary"
	"fmt"
	"io"
	"time"
)

const (
	// pcapMagic is that of files with times in nanoseconds.
	pcapMagic = 0xa1b23c4d
	// linkEthernet is LINKTYPE_ETHERNET.
	linkEthernet = 1

	headerSize = 24
	recordSize = 16
)

// appendHeader begins a file (draft-ietf-opsawg-pcap: version 2.4, little endian here;
// the magic tells readers).
func appendHeader(b []byte, snap uint32) []byte {
	b = binary.LittleEndian.AppendUint32(b, pcapMagic)
	b = binary.LittleEndian.AppendUint16(b, 2)
	b = binary.LittleEndian.AppendUint16(b, 4)
	b = append(b, make([]byte, 8)...)
	b = binary.LittleEndian.AppendUint32(b, snap)
	return binary.LittleEndian.AppendUint32(b, linkEthernet)
}

// appendRecord writes what stands before the n bytes of a packet that had length bytes.
func appendRecord(b []byte, at time.Time, n, length int) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(at.Unix()))
	b = binary.LittleEndian.AppendUint32(b, uint32(at.Nanosecond()))
	b = binary.LittleEndian.AppendUint32(b, uint32(n))
	return binary.LittleEndian.AppendUint32(b, uint32(length))
}

// Whole passes the bytes of a file on, but never a part of a packet: where the file ends
// early, readers find a whole one.
type Whole struct {
	W io.Writer
	// held are the bytes of a packet that has not come in full.
	held []byte
	// begun says that the header was passed on.
	begun bool
}

// Write takes all of p.
func (w *Whole) Write(p []byte) (int, error) {
	w.held = append(w.held, p...)
	n := 0
	for {
		size := headerSize
		if rest := w.held[n:]; w.begun {
			if len(rest) < recordSize {
				break
			}
			size = recordSize + int(binary.LittleEndian.Uint32(rest[8:]))
			if size > recordSize+MaxSnap {
				return 0, fmt.Errorf("a packet of %d bytes is in the file: it is broken", size-recordSize)
			}
		}
		if len(w.held)-n < size {
			break
		}
		n, w.begun = n+size, true
	}
	if n > 0 {
		if _, err := w.W.Write(w.held[:n]); err != nil {
			return 0, err
		}
		w.held = append(w.held[:0], w.held[n:]...)
	}
	return len(p), nil
}

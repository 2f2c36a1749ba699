package etcd

import (
	"sync"

	"github.com/fairlead-sdn/fairlead/internal/datastore"
)

// maxWritten bounds how many objects are remembered: a node writes its few blocks and
// its NodeNetwork again and again, and little else.
const maxWritten = 16

// written remembers objects as this process wrote them last, so that the next write of
// the same object need not read it. It is only a guess: whether an object is still so is
// for the transaction to tell, which compares the revision. The zero value is empty.
type written struct {
	mu      sync.Mutex
	objects map[string]datastore.Object // by path
}

// keep remembers an object. It keeps a copy: the object is the caller's.
func (w *written) keep(path string, o datastore.Object) {
	copied, ok := o.DeepCopyObject().(datastore.Object)
	if !ok {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.objects == nil {
		w.objects = map[string]datastore.Object{}
	}
	if _, had := w.objects[path]; !had && len(w.objects) >= maxWritten {
		for other := range w.objects { // any one
			delete(w.objects, other)
			break
		}
	}
	w.objects[path] = copied
}

// take returns the object if it was written as that resourceVersion, else nil, and
// forgets it: whoever writes it keeps what comes of it.
func (w *written) take(path, resourceVersion string) datastore.Object {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.objects[path]
	delete(w.objects, path)
	if o == nil || o.GetResourceVersion() != resourceVersion {
		return nil
	}
	return o
}

// Two pages of a heap, seen in swapped order by a kernel: examples/c/swapped_pages.c in Go.
//
//	go run swapped_pages.go
//
// The host writes a row of floats into each page of the heap. The sparse buffer shows page 1 before
// page 0, so rmsnorm, which reads the buffer, normalises the rows in swapped order.
package main

// #cgo pkg-config: mtlq
// #include <stdlib.h>
// #include <mtlq.h>
// #include <mtlq_args.h>
import "C"

import (
	"fmt"
	"log"
	"math"
	"runtime"
	"unsafe"
)

const (
	rows          = 2
	reservedPages = 1024 // addresses only: two pages of memory stand behind them
	eps           = 1e-6
	maxError      = 1e-5
)

func main() {
	// The text of an error belongs to the thread whose call failed.
	runtime.LockOSThread()
	log.SetFlags(0)
	largest, err := normaliseSwapped()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("rmsnorm of the buffer's rows: largest error %.1e\n", largest)
	if largest > maxError {
		log.Fatal("the rows were not normalised in swapped order")
	}
}

// check turns the status of a call into an error.
func check(status C.int32_t) error {
	if status == C.MTLQ_OK {
		return nil
	}
	return fmt.Errorf("%s (status %d)", C.GoString(C.mtlq_last_error()), status)
}

// floats is the memory of the library at address as a slice, without a copy.
func floats(address unsafe.Pointer, count int) []float32 {
	return unsafe.Slice((*float32)(address), count)
}

func normaliseSwapped() (float64, error) {
	version, wanted := uint32(C.mtlq_abi_version()), uint32(C.MTLQ_ABI_MAJOR<<16|C.MTLQ_ABI_MINOR)
	if version>>16 != wanted>>16 || version < wanted {
		return 0, fmt.Errorf("libmtlq has ABI %x, this program needs %x", version, wanted)
	}
	name := C.CString("cpu")
	defer C.free(unsafe.Pointer(name))
	var device *C.mtlq_device
	if err := check(C.mtlq_device_open(name, nil, &device)); err != nil {
		return 0, err
	}
	defer C.mtlq_device_close(device)
	info := C.mtlq_device_info{struct_size: C.sizeof_mtlq_device_info}
	if err := check(C.mtlq_device_get_info(device, &info)); err != nil {
		return 0, err
	}
	pageBytes := info.sparse_page_bytes[0]
	fmt.Printf("%s, pages of %d bytes\n", C.GoString(&info.name[0]), pageBytes)

	x, heap, err := mapSwapped(device, pageBytes)
	defer C.mtlq_heap_free(heap) // after the buffer that maps it: deferred calls run last to first
	defer C.mtlq_buffer_free(x)
	if err != nil {
		return 0, err
	}
	y, err := rmsnorm(device, x, int(pageBytes)/4)
	defer C.mtlq_buffer_free(y)
	if err != nil {
		return 0, err
	}
	return largestError(y, int(pageBytes)/4)
}

// mapSwapped returns a sparse buffer that shows the two pages of a heap in swapped order.
// Row r of the heap is r + 1, r + 2, ..
func mapSwapped(device *C.mtlq_device, pageBytes C.uint32_t) (x *C.mtlq_buffer, heap *C.mtlq_heap, err error) {
	numBytes := C.uint64_t(pageBytes)
	if err = check(C.mtlq_sparse_create(device, reservedPages*numBytes, pageBytes, &x)); err != nil {
		return
	}
	if err = check(C.mtlq_heap_create(device, rows*numBytes, pageBytes, &heap)); err != nil {
		return
	}
	var ops [rows]C.mtlq_map_op
	for page := range ops {
		ops[page] = C.mtlq_map_op{
			kind: C.MTLQ_MAP, buffer: C.mtlq_buffer_id(x), heap: C.mtlq_heap_id(heap),
			page: C.uint64_t(page), heap_page: C.uint64_t(rows - 1 - page), num_pages: 1,
		}
	}
	if err = check(C.mtlq_map(device, &ops[0], rows)); err != nil {
		return
	}
	var pages, seen unsafe.Pointer
	if err = check(C.mtlq_heap_contents(heap, &pages)); err != nil {
		return
	}
	if err = check(C.mtlq_buffer_contents(x, &seen)); err != nil {
		return
	}
	dim := int(pageBytes) / 4
	written, read := floats(pages, rows*dim), floats(seen, rows*dim)
	for i := range written {
		written[i] = float32(i/dim + 1 + i%dim)
	}
	fmt.Printf("the heap's rows begin with %g and %g, the buffer's with %g and %g\n",
		written[0], written[dim], read[0], read[dim])
	return
}

// newBuffer returns zero-filled memory of the device, and its address.
func newBuffer(device *C.mtlq_device, numBytes int) (buffer *C.mtlq_buffer, contents unsafe.Pointer, err error) {
	if err = check(C.mtlq_buffer_create(device, C.uint64_t(numBytes), &buffer)); err == nil {
		err = check(C.mtlq_buffer_contents(buffer, &contents))
	}
	return
}

// rmsnorm returns the buffer with the normalised rows of x. It goes through an encoder: a plan's
// description holds pointers, and cgo passes no pointers to pointers of Go.
func rmsnorm(device *C.mtlq_device, x *C.mtlq_buffer, dim int) (*C.mtlq_buffer, error) {
	var library *C.mtlq_library
	if err := check(C.mtlq_library_create(device, nil, 0, &library)); err != nil {
		return nil, err
	}
	defer C.mtlq_library_free(library)
	name := C.CString("rmsnorm")
	defer C.free(unsafe.Pointer(name))
	var pipeline *C.mtlq_pipeline
	if err := check(C.mtlq_pipeline_create(library, name, nil, 0, &pipeline)); err != nil {
		return nil, err
	}
	defer C.mtlq_pipeline_free(pipeline)

	header, counts, err := newBuffer(device, C.sizeof_mtlq_batch_header)
	defer C.mtlq_buffer_free(header)
	if err != nil {
		return nil, err
	}
	(*C.mtlq_batch_header)(counts).num_rows = rows
	weight, weights, err := newBuffer(device, 4*dim)
	defer C.mtlq_buffer_free(weight)
	if err != nil {
		return nil, err
	}
	for i := range floats(weights, dim) {
		floats(weights, dim)[i] = 1
	}
	y, _, err := newBuffer(device, 4*rows*dim)
	if err != nil {
		return y, err
	}

	var encoder *C.mtlq_encoder
	if err := check(C.mtlq_encoder_create(device, &encoder)); err != nil {
		return y, err
	}
	defer C.mtlq_encoder_free(encoder)
	args := C.mtlq_rmsnorm_args{dim: C.uint32_t(dim), rows: C.MTLQ_ROWS, eps: eps}
	var bindings [4]C.mtlq_binding // in the order of mtlq_args.h
	for i, buffer := range []*C.mtlq_buffer{header, x, weight, y} {
		bindings[i].buffer = C.mtlq_buffer_id(buffer)
	}
	dispatch := C.mtlq_dispatch{
		pipeline: C.mtlq_pipeline_id(pipeline), grid_buffer: C.MTLQ_NO_ID,
		num_bindings: C.uint32_t(len(bindings)), args_bytes: C.sizeof_mtlq_rmsnorm_args,
	}
	err = check(C.mtlq_encoder_dispatch(encoder, &dispatch, &bindings[0], unsafe.Pointer(&args)))
	if err != nil {
		return y, err
	}
	var ticket C.uint64_t
	if err := check(C.mtlq_encoder_commit(encoder, &ticket)); err != nil {
		return y, err
	}
	return y, check(C.mtlq_wait(device, ticket, C.MTLQ_FOREVER))
}

// largestError returns the largest difference from x / sqrt(mean(x^2) + eps), where row r of y is
// row rows - 1 - r.
func largestError(y *C.mtlq_buffer, dim int) (float64, error) {
	var contents unsafe.Pointer
	if err := check(C.mtlq_buffer_contents(y, &contents)); err != nil {
		return 0, err
	}
	values, largest := floats(contents, rows*dim), 0.0
	for row := 0; row < rows; row++ {
		first, sum := float64(rows-row), 0.0
		for i := 0; i < dim; i++ {
			sum += (first + float64(i)) * (first + float64(i))
		}
		rms := math.Sqrt(sum/float64(dim) + eps)
		for i := 0; i < dim; i++ {
			difference := float64(values[row*dim+i]) - (first+float64(i))/rms
			largest = math.Max(largest, math.Abs(difference))
		}
	}
	return largest, nil
}

//! What swapped_pages.rs needs of mtlq.h: declarations, and owners that free what they own.

use std::ffi::{CStr, CString};
use std::fmt;
use std::mem::{size_of, size_of_val, zeroed};
use std::os::raw::{c_char, c_void};
use std::ptr::{copy_nonoverlapping, null, null_mut};

const ABI_MAJOR: u32 = 1;
const ABI_MINOR: u32 = 0;
const NO_ID: u32 = u32::MAX;
const FOREVER: u64 = u64::MAX;
const MAP: u32 = 0;

type Handle = *mut c_void; // mtlq_device *, mtlq_buffer *, ..

#[repr(C)]
pub struct DeviceInfo {
    struct_size: u32,
    num_threads: u32,
    name: [c_char; 64],
    isa: [c_char; 16],
    memory_bytes: u64,
    max_buffer_bytes: u64,
    wrap_alignment_bytes: u64,
    pub sparse_page_bytes: [u32; 4],
    max_mappings: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Default)]
pub struct MapOp {
    kind: u32,
    buffer: u32,
    heap: u32,
    reserved: u32,
    page: u64,
    heap_page: u64,
    num_pages: u64,
}

#[repr(C)]
#[derive(Default)]
pub struct Binding {
    buffer: u32,
    reserved: u32,
    offset_bytes: u64,
}

#[repr(C)]
#[derive(Default)]
struct Dispatch {
    pipeline: u32,
    flags: u32,
    grid: [u32; 3],
    group: [u32; 3],
    grid_buffer: u32,
    grid_offset_bytes: u32,
    first_binding: u32,
    num_bindings: u32,
    args_offset: u32,
    args_bytes: u32,
    reserved: [u32; 2],
}

#[repr(C)]
struct PlanDesc {
    struct_size: u32,
    num_dispatches: u32,
    num_bindings: u32,
    num_args_bytes: u32,
    dispatches: *const Dispatch,
    bindings: *const Binding,
    args: *const c_void,
}

extern "C" {
    fn mtlq_abi_version() -> u32;
    fn mtlq_last_error() -> *const c_char;
    fn mtlq_device_open(name: *const c_char, desc: *const c_void, out: *mut Handle) -> i32;
    fn mtlq_device_close(device: Handle);
    fn mtlq_device_get_info(device: Handle, info: *mut DeviceInfo) -> i32;
    fn mtlq_buffer_create(device: Handle, num_bytes: u64, out: *mut Handle) -> i32;
    fn mtlq_sparse_create(device: Handle, num_bytes: u64, page_bytes: u32, out: *mut Handle)
        -> i32;
    fn mtlq_buffer_contents(buffer: Handle, out: *mut *mut c_void) -> i32;
    fn mtlq_buffer_id(buffer: Handle) -> u32;
    fn mtlq_buffer_free(buffer: Handle);
    fn mtlq_heap_create(device: Handle, num_bytes: u64, page_bytes: u32, out: *mut Handle) -> i32;
    fn mtlq_heap_contents(heap: Handle, out: *mut *mut c_void) -> i32;
    fn mtlq_heap_id(heap: Handle) -> u32;
    fn mtlq_heap_free(heap: Handle) -> i32;
    fn mtlq_map(device: Handle, ops: *const MapOp, num_ops: u32) -> i32;
    fn mtlq_library_create(device: Handle, source: *const c_char, n: u64, out: *mut Handle) -> i32;
    fn mtlq_library_free(library: Handle);
    fn mtlq_pipeline_create(
        library: Handle,
        name: *const c_char,
        constants: *const c_void,
        num_constants: u32,
        out: *mut Handle,
    ) -> i32;
    fn mtlq_pipeline_id(pipeline: Handle) -> u32;
    fn mtlq_pipeline_free(pipeline: Handle);
    fn mtlq_plan_create(device: Handle, desc: *const PlanDesc, out: *mut Handle) -> i32;
    fn mtlq_plan_free(plan: Handle);
    fn mtlq_submit(
        device: Handle,
        plans: *const Handle,
        num_plans: u32,
        ops: *const MapOp,
        num_ops: u32,
        ticket: *mut u64,
    ) -> i32;
    fn mtlq_wait(device: Handle, ticket: u64, timeout_nanoseconds: u64) -> i32;
}

pub type Result<T> = std::result::Result<T, Error>;

pub struct Error {
    status: i32,
    message: String,
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} (status {})", self.message, self.status)
    }
}

fn check(status: i32) -> Result<()> {
    if status == 0 {
        return Ok(());
    }
    // The text is this thread's until its next failing call, so it is copied here.
    let message = unsafe { CStr::from_ptr(mtlq_last_error()) };
    Err(Error {
        status,
        message: message.to_string_lossy().into_owned(),
    })
}

/// A handle or an address, by a function that stores it in its last parameter.
fn receive(store: impl FnOnce(*mut Handle) -> i32) -> Result<Handle> {
    let mut handle = null_mut();
    check(store(&mut handle))?;
    Ok(handle)
}

/// A handle, and what frees it.
struct Owned(Handle, unsafe extern "C" fn(Handle));

impl Drop for Owned {
    fn drop(&mut self) {
        unsafe { (self.1)(self.0) }
    }
}

pub struct Device(Owned);

impl Device {
    pub fn open(name: &str) -> Result<Device> {
        let version = unsafe { mtlq_abi_version() };
        if version >> 16 != ABI_MAJOR || version & 0xffff < ABI_MINOR {
            let message = format!("libmtlq has ABI {version:x}, not {ABI_MAJOR}.{ABI_MINOR}");
            return Err(Error { status: 0, message });
        }
        let name = CString::new(name).expect("no zero byte in the name of a device");
        let handle = receive(|out| unsafe { mtlq_device_open(name.as_ptr(), null(), out) })?;
        Ok(Device(Owned(handle, mtlq_device_close)))
    }

    pub fn info(&self) -> Result<DeviceInfo> {
        let mut info: DeviceInfo = unsafe { zeroed() };
        info.struct_size = size_of::<DeviceInfo>() as u32;
        check(unsafe { mtlq_device_get_info(self.0 .0, &mut info) })?;
        Ok(info)
    }

    pub fn map(&self, ops: &[MapOp]) -> Result<()> {
        check(unsafe { mtlq_map(self.0 .0, ops.as_ptr(), ops.len() as u32) })
    }

    /// Runs a plan; returns when it is done.
    pub fn run(&self, plan: &Plan) -> Result<()> {
        let mut ticket = 0;
        check(unsafe { mtlq_submit(self.0 .0, &plan.0 .0, 1, null(), 0, &mut ticket) })?;
        check(unsafe { mtlq_wait(self.0 .0, ticket, FOREVER) })
    }
}

impl DeviceInfo {
    pub fn name(&self) -> String {
        unsafe { CStr::from_ptr(self.name.as_ptr()) }
            .to_string_lossy()
            .into_owned()
    }
}

/// Values that are nothing but their four bytes.
pub trait Word: Copy + Default {}
impl Word for u32 {}
impl Word for f32 {}

/// The host's view of a buffer or heap. Touching an unmapped page of a sparse buffer is a fault.
pub struct Memory {
    address: Handle,
    num_bytes: u64,
}

impl Memory {
    pub fn write<T: Word>(&self, values: &[T]) {
        assert!(size_of_val(values) as u64 <= self.num_bytes);
        unsafe { copy_nonoverlapping(values.as_ptr(), self.address.cast(), values.len()) }
    }

    pub fn read<T: Word>(&self, count: usize) -> Vec<T> {
        let mut values = vec![T::default(); count];
        assert!(size_of_val(&values[..]) as u64 <= self.num_bytes);
        unsafe { copy_nonoverlapping(self.address.cast(), values.as_mut_ptr(), count) }
        values
    }
}

pub struct Buffer {
    handle: Owned,
    pub memory: Memory,
}

impl Buffer {
    pub fn new(device: &Device, num_bytes: u64) -> Result<Buffer> {
        let create = |out| unsafe { mtlq_buffer_create(device.0 .0, num_bytes, out) };
        Buffer::of(receive(create)?, num_bytes)
    }

    /// Addresses without memory, for `Device::map`.
    pub fn sparse(device: &Device, num_bytes: u64, page_bytes: u32) -> Result<Buffer> {
        let create = |out| unsafe { mtlq_sparse_create(device.0 .0, num_bytes, page_bytes, out) };
        Buffer::of(receive(create)?, num_bytes)
    }

    fn of(handle: Handle, num_bytes: u64) -> Result<Buffer> {
        let handle = Owned(handle, mtlq_buffer_free);
        let address = receive(|out| unsafe { mtlq_buffer_contents(handle.0, out) })?;
        Ok(Buffer {
            handle,
            memory: Memory { address, num_bytes },
        })
    }
}

/// Pages for sparse buffers. Declare it before the buffers that map it: it must be freed after them.
pub struct Heap {
    handle: Owned,
    pub memory: Memory,
}

impl Heap {
    pub fn new(device: &Device, num_bytes: u64, page_bytes: u32) -> Result<Heap> {
        unsafe extern "C" fn free(heap: Handle) {
            mtlq_heap_free(heap);
        }
        let create = |out| unsafe { mtlq_heap_create(device.0 .0, num_bytes, page_bytes, out) };
        let handle = Owned(receive(create)?, free);
        let address = receive(|out| unsafe { mtlq_heap_contents(handle.0, out) })?;
        Ok(Heap {
            handle,
            memory: Memory { address, num_bytes },
        })
    }
}

impl MapOp {
    /// Shows page `heap_page` of the heap as page `page` of the buffer.
    pub fn map(buffer: &Buffer, page: u64, heap: &Heap, heap_page: u64) -> MapOp {
        let (buffer, heap) =
            unsafe { (mtlq_buffer_id(buffer.handle.0), mtlq_heap_id(heap.handle.0)) };
        MapOp {
            kind: MAP,
            buffer,
            heap,
            page,
            heap_page,
            num_pages: 1,
            ..MapOp::default()
        }
    }
}

pub struct Plan(Owned);

impl Plan {
    /// One launch of a kernel of the cpu device over whole buffers; A is its struct of mtlq_args.h.
    pub fn new<A>(device: &Device, kernel: &str, buffers: &[&Buffer], args: &A) -> Result<Plan> {
        let name = CString::new(kernel).expect("no zero byte in the name of a kernel");
        let device = device.0 .0;
        let library = receive(|out| unsafe { mtlq_library_create(device, null(), 0, out) })?;
        let library = Owned(library, mtlq_library_free);
        let create =
            |out| unsafe { mtlq_pipeline_create(library.0, name.as_ptr(), null(), 0, out) };
        let pipeline = Owned(receive(create)?, mtlq_pipeline_free);
        let bindings: Vec<Binding> = buffers
            .iter()
            .map(|buffer| unsafe { mtlq_buffer_id(buffer.handle.0) })
            .map(|buffer| Binding {
                buffer,
                ..Binding::default()
            })
            .collect();
        let dispatch = Dispatch {
            pipeline: unsafe { mtlq_pipeline_id(pipeline.0) },
            grid_buffer: NO_ID,
            num_bindings: bindings.len() as u32,
            args_bytes: size_of::<A>() as u32,
            ..Dispatch::default()
        };
        let desc = PlanDesc {
            struct_size: size_of::<PlanDesc>() as u32,
            num_dispatches: 1,
            num_bindings: bindings.len() as u32,
            num_args_bytes: size_of::<A>() as u32,
            dispatches: &dispatch,
            bindings: bindings.as_ptr(),
            args: (args as *const A).cast(),
        };
        // The plan keeps the pipeline and the buffers alive: what is freed here was only a name.
        let plan = receive(|out| unsafe { mtlq_plan_create(device, &desc, out) })?;
        Ok(Plan(Owned(plan, mtlq_plan_free)))
    }
}

//! Two pages of a heap, seen in swapped order by a kernel: examples/c/swapped_pages.c in Rust.
//!
//!     rustc swapped_pages.rs $(pkg-config --libs mtlq) && ./swapped_pages
//!
//! The host writes a row of floats into each page of the heap. The sparse buffer shows page 1
//! before page 0, so rmsnorm, which reads the buffer, normalises the rows in swapped order.

use std::mem::size_of;

mod mtlq;

use mtlq::{Buffer, Device, Heap, MapOp, Plan, Result};

const ROWS: usize = 2;
const RESERVED_PAGES: u64 = 1024; // addresses only: two pages of memory stand behind them
const EPS: f32 = 1e-6;
const MAX_ERROR: f64 = 1e-5;

/// mtlq_rmsnorm_args of mtlq_args.h.
#[repr(C)]
struct RmsnormArgs {
    dim: u32,
    rows: u32, // word of the batch header with the number of rows
    eps: f32,
}

fn main() -> Result<()> {
    let device = Device::open("cpu")?;
    let info = device.info()?;
    let page_bytes = info.sparse_page_bytes[0];
    let dim = page_bytes as usize / size_of::<f32>();
    println!("{}, pages of {page_bytes} bytes", info.name());

    let rows_bytes = ROWS as u64 * u64::from(page_bytes);
    let heap = Heap::new(&device, rows_bytes, page_bytes)?;
    let x = Buffer::sparse(&device, RESERVED_PAGES * u64::from(page_bytes), page_bytes)?;
    device.map(&[MapOp::map(&x, 0, &heap, 1), MapOp::map(&x, 1, &heap, 0)])?;

    // Row r of the heap is r + 1, r + 2, ..
    let rows: Vec<f32> = (0..ROWS * dim)
        .map(|i| (i / dim + 1 + i % dim) as f32)
        .collect();
    heap.memory.write(&rows);
    let seen = x.memory.read::<f32>(ROWS * dim);
    println!(
        "the heap's rows begin with {} and {}, the buffer's with {} and {}",
        rows[0], rows[dim], seen[0], seen[dim]
    );

    let header = Buffer::new(&device, 64)?;
    let weight = Buffer::new(&device, u64::from(page_bytes))?;
    let y = Buffer::new(&device, rows_bytes)?;
    header.memory.write(&[ROWS as u32]);
    weight.memory.write(&vec![1f32; dim]);

    let args = RmsnormArgs {
        dim: dim as u32,
        rows: 0,
        eps: EPS,
    };
    let plan = Plan::new(&device, "rmsnorm", &[&header, &x, &weight, &y], &args)?;
    device.run(&plan)?;

    let error = largest_error(&y.memory.read(ROWS * dim), dim);
    println!("rmsnorm of the buffer's rows: largest error {error:.1e}");
    assert!(
        error < MAX_ERROR,
        "the rows were not normalised in swapped order"
    );
    Ok(())
}

/// The largest difference from x / sqrt(mean(x^2) + eps), where row r of y is row ROWS - 1 - r.
fn largest_error(y: &[f32], dim: usize) -> f64 {
    let mut error = 0f64;
    for (row, y) in y.chunks(dim).enumerate() {
        let x: Vec<f64> = (0..dim).map(|i| (ROWS - row + i) as f64).collect();
        let mean_square = x.iter().map(|v| v * v).sum::<f64>() / dim as f64;
        let rms = (mean_square + f64::from(EPS)).sqrt();
        for (x, y) in x.iter().zip(y) {
            error = error.max((f64::from(*y) - x / rms).abs());
        }
    }
    error
}

//! The global allocator of Tenure's policies: a bump allocator over a fixed array.
//!
//! Nothing outlives a call, so a real `free` would be wasted work: when the last block has
//! been freed, the arena is empty again. What counts is that the memory never grows: the
//! first block of Rust's usual allocator is a `memory.grow`, which costs the host two system
//! calls and several page faults on every call.
//!
//! When the arena is used up, the allocation fails and the call traps; the next call
//! starts on an empty arena.
//!
//! ```
//! # #[cfg(target_arch = "wasm32")]
//! #[global_allocator]
//! static ARENA: guest_arena::Arena<{ 24 * 1024 }> = guest_arena::Arena::new();
//! ```
#![deny(missing_docs)]
#![cfg_attr(not(test), no_std)]

use core::alloc::{GlobalAlloc, Layout};
use core::cell::{Cell, UnsafeCell};
use core::ptr;

/// The arena's own alignment, and so the largest that an allocation can ask for. The
/// canonical ABI asks for 8 at the most.
const MAX_ALIGN: usize = 16;

#[repr(C, align(16))]
struct Block<const BYTES: usize>(UnsafeCell<[u8; BYTES]>);

/// A bump allocator over `BYTES` bytes.
pub struct Arena<const BYTES: usize> {
    block: Block<BYTES>,
    used: Cell<usize>,
    /// How many blocks are in use.
    live: Cell<usize>,
}

// SAFETY: a policy is a single-threaded WebAssembly instance, so no two threads ever
// reach the arena. Natively it is not used as an allocator, save by the unit tests,
// each of which keeps its own on one thread.
unsafe impl<const BYTES: usize> Sync for Arena<BYTES> {}

impl<const BYTES: usize> Arena<BYTES> {
    /// An empty arena.
    #[expect(
        clippy::new_without_default,
        reason = "an allocator is made in a const context"
    )]
    pub const fn new() -> Self {
        Self {
            block: Block(UnsafeCell::new([0; BYTES])),
            used: Cell::new(0),
            live: Cell::new(0),
        }
    }

    fn base(&self) -> *mut u8 {
        self.block.0.get().cast()
    }

    /// Whether the `size` bytes at `block` are the ones that were handed out last.
    fn is_last(&self, block: *mut u8, size: usize) -> bool {
        block.addr() - self.base().addr() + size == self.used.get()
    }
}

// SAFETY: every block lies within the arena, since `alloc` and `realloc` check the end
// against `BYTES`, and live blocks never overlap, since `used` only falls back to the
// start of the last block, when that one is freed, or to 0, when no block is live. Alignment is relative to the arena's
// own, which is `MAX_ALIGN`.
unsafe impl<const BYTES: usize> GlobalAlloc for Arena<BYTES> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > MAX_ALIGN {
            return ptr::null_mut();
        }
        let start = self.used.get().next_multiple_of(layout.align());
        match start.checked_add(layout.size()) {
            Some(end) if end <= BYTES => {
                self.used.set(end);
                self.live.set(self.live.get() + 1);
                // SAFETY: `start <= end <= BYTES`.
                unsafe { self.base().add(start) }
            }
            _ => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        self.live.set(self.live.get() - 1);
        if self.live.get() == 0 {
            self.used.set(0);
        } else if self.is_last(block, layout.size()) {
            self.used.set(self.used.get() - layout.size());
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if self.is_last(block, layout.size()) {
            let start = self.used.get() - layout.size();
            return match start.checked_add(new_size) {
                Some(end) if end <= BYTES => {
                    self.used.set(end);
                    block
                }
                _ => ptr::null_mut(),
            };
        }
        if new_size <= layout.size() {
            return block;
        }
        // SAFETY: `new_size` is more than `layout.size()` and so not zero, and the
        // caller vouches that it does not overflow when rounded up to the alignment.
        let grown = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        // SAFETY: `grown` is not empty.
        let moved = unsafe { self.alloc(grown) };
        if !moved.is_null() {
            self.live.set(self.live.get() - 1);
            // SAFETY: both blocks hold `layout.size()` bytes, and a new block does not
            // overlap a live one.
            unsafe { ptr::copy_nonoverlapping(block, moved, layout.size()) };
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    fn blocks_are_aligned_and_do_not_overlap() {
        let arena = Arena::<64>::new();
        // SAFETY: the layouts are not empty.
        let (a, b) = unsafe { (arena.alloc(layout(3, 1)), arena.alloc(layout(8, 8))) };
        assert_eq!(b.addr() % 8, 0);
        assert!(b.addr() >= a.addr() + 3);
    }

    #[test]
    fn a_full_arena_answers_null_and_stays_usable() {
        let arena = Arena::<64>::new();
        // SAFETY: the layouts are not empty.
        unsafe {
            assert!(!arena.alloc(layout(60, 1)).is_null());
            assert!(arena.alloc(layout(5, 1)).is_null());
            assert!(arena.alloc(layout(usize::MAX / 2, 1)).is_null());
            assert!(!arena.alloc(layout(4, 1)).is_null());
        }
    }

    #[test]
    fn alignment_beyond_the_arenas_own_answers_null() {
        let arena = Arena::<64>::new();
        // SAFETY: the layout is not empty.
        assert!(unsafe { arena.alloc(layout(1, 32)) }.is_null());
    }

    #[test]
    fn the_last_block_grows_in_place_and_frees_its_room() {
        let arena = Arena::<64>::new();
        // SAFETY: each block is passed on with the layout that it has.
        unsafe {
            let a = arena.alloc(layout(8, 8));
            assert_eq!(arena.realloc(a, layout(8, 8), 64), a);
            assert!(arena.realloc(a, layout(64, 8), 65).is_null());
            arena.dealloc(a, layout(64, 8));
            assert_eq!(arena.alloc(layout(64, 8)), a);
        }
    }

    #[test]
    fn the_last_block_to_be_freed_empties_the_arena() {
        let arena = Arena::<64>::new();
        // SAFETY: each block is passed on with the layout that it has.
        unsafe {
            let a = arena.alloc(layout(8, 1));
            let b = arena.alloc(layout(8, 1));
            let moved = arena.realloc(a, layout(8, 1), 16);
            arena.dealloc(b, layout(8, 1));
            assert!(arena.alloc(layout(64, 1)).is_null());
            arena.dealloc(moved, layout(16, 1));
            assert_eq!(arena.alloc(layout(64, 1)), a);
        }
    }

    #[test]
    fn an_earlier_block_moves_with_its_bytes() {
        let arena = Arena::<64>::new();
        // SAFETY: each block is passed on with the layout that it has, and only its
        // own bytes are touched.
        unsafe {
            let a = arena.alloc(layout(2, 1));
            a.write(7);
            a.add(1).write(9);
            let _later = arena.alloc(layout(1, 1));
            let moved = arena.realloc(a, layout(2, 1), 4);
            assert_ne!(moved, a);
            assert_eq!((moved.read(), moved.add(1).read()), (7, 9));
            assert_eq!(arena.realloc(moved, layout(4, 1), 1), moved);
        }
    }
}

//! Appending to a list without a check of its capacity per item.
#![allow(unsafe_code)]

/// Reserved spare capacity at the end of a `Vec`. A push is a store and an increment and does not
/// access the `Vec`. The length of the `Vec` is updated when this value is dropped.
pub(super) struct SpareCapacity<'a, T> {
    list: &'a mut Vec<T>,
    /// Address of the next free element in the spare capacity.
    next: *mut T,
    /// End address of the reserved spare capacity.
    end: *mut T,
}

impl<'a, T> SpareCapacity<'a, T> {
    /// Reserves `most` elements at the end of the `Vec`, which grows if its capacity is too small.
    #[inline]
    pub(super) fn new(list: &'a mut Vec<T>, most: usize) -> Self {
        const {
            assert!(
                size_of::<T>() > 0,
                "places of a type of size 0 have equal addresses"
            )
        };
        list.reserve(most);
        let next = list.spare_capacity_mut().as_mut_ptr().cast::<T>();
        Self {
            list,
            next,
            end: next.wrapping_add(most),
        }
    }

    /// Returns `true` if all reserved elements of the `Vec` are used.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.next == self.end
    }

    /// Stores `item` in the next reserved element and returns a reference to it. If the spare
    /// capacity is used up, drops the item and returns `None`.
    #[inline]
    pub(super) fn push(&mut self, item: T) -> Option<&mut T> {
        if self.is_full() {
            return None;
        }
        let place = self.next;
        self.next = place.wrapping_add(1);
        // SAFETY: the place is within the list's spare capacity, which is borrowed.
        unsafe { place.write(item) };
        // SAFETY: the place was written just now, and is borrowed as long as `self`.
        Some(unsafe { &mut *place })
    }
}

impl<T> Drop for SpareCapacity<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let spare = self.list.spare_capacity_mut().as_mut_ptr().cast::<T>();
        // SAFETY: the list has not changed, so both pointers are in its memory, and `next` is not before `spare`.
        let taken = unsafe { self.next.offset_from_unsigned(spare) };
        // SAFETY: `taken` places behind the list's items are written, and they are within its capacity.
        unsafe { self.list.set_len(self.list.len() + taken) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_grows_by_the_pushed_items_and_at_most_by_the_reserved_places() {
        let mut list = vec![String::from("first")];
        for (most, full) in [(0, 1), (2, 3), (1, 4)] {
            let mut places = SpareCapacity::new(&mut list, most);
            while !places.is_full() {
                assert!(places.push(String::from("more")).is_some());
            }
            assert!(places.push(String::from("beyond")).is_none());
            drop(places);
            assert_eq!(list.len(), full);
        }
        if let Some(place) = SpareCapacity::new(&mut list, 8).push(String::new()) {
            place.push_str("last");
        }
        assert_eq!(list, ["first", "more", "more", "more", "last"]);
    }
}

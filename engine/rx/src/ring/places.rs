//! The free places at the end of a list.
#![allow(unsafe_code)]

/// Free places at a list's end. A push there is a store and a step, without a look at the list, which is so much longer once
/// this goes.
pub(super) struct Places<'a, T> {
    list: &'a mut Vec<T>,
    /// The next place, and the end of those that may be taken.
    next: *mut T,
    end: *mut T,
}

impl<'a, T> Places<'a, T> {
    /// So many; the list grows if it has no room for them.
    #[inline]
    pub(super) fn of(list: &'a mut Vec<T>, most: usize) -> Self {
        const {
            assert!(
                size_of::<T>() > 0,
                "places are told apart by their addresses"
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

    /// Whether all are taken.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.next == self.end
    }

    /// Takes the next place, and gives the item there; `None`: there is none, and the item is dropped.
    #[inline]
    pub(super) fn push(&mut self, item: T) -> Option<&mut T> {
        if self.is_full() {
            return None;
        }
        let place = self.next;
        self.next = place.wrapping_add(1);
        // SAFETY: a place within the list's spare capacity, which is borrowed.
        unsafe { place.write(item) };
        // SAFETY: written just now, and borrowed as long as this is.
        Some(unsafe { &mut *place })
    }
}

impl<T> Drop for Places<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let spare = self.list.spare_capacity_mut().as_mut_ptr().cast::<T>();
        // SAFETY: the list has not changed, so that both are in its memory, the next place not before the first.
        let taken = unsafe { self.next.offset_from_unsigned(spare) };
        // SAFETY: so many places behind the list's items are written, and within its capacity.
        unsafe { self.list.set_len(self.list.len() + taken) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_longer_by_what_was_pushed_and_by_no_more_than_was_asked_for() {
        let mut list = vec![String::from("first")];
        for (most, full) in [(0, 1), (2, 3), (1, 4)] {
            let mut places = Places::of(&mut list, most);
            while !places.is_full() {
                assert!(places.push(String::from("more")).is_some());
            }
            assert!(places.push(String::from("beyond")).is_none());
            drop(places);
            assert_eq!(list.len(), full);
        }
        if let Some(place) = Places::of(&mut list, 8).push(String::new()) {
            place.push_str("last");
        }
        assert_eq!(list, ["first", "more", "more", "more", "last"]);
    }
}

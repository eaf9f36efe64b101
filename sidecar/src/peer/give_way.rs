//! Giving way between two steps of a long piece of work, to whoever the last one woke.

/// Lets a thread run that waits for this core. A frame that was sent wakes its reader, and where both ends are on one machine often
/// on the very core that sent it: there it would wait for the end of a slice, some milliseconds, while another core idles. Where
/// none waits it costs less than a microsecond.
pub(crate) fn give_way() {
    std::thread::yield_now();
}

/* The shell is elsewhere: a client, on a raw terminal of its own here, carries what is typed and printed. */
#include "swx_session_private.h"

static bool drop_input(swx_session *s)
{
    return !s->input.half_line || swx_session_type_bytes(s, "\025", 1); /* the key that kills a line */
}

/* The key itself is all that gets there. */
static void interrupt(swx_session *s, swx_op *op, pid_t group, int64_t now)
{
    (void)op, (void)group;
    s->run.interrupted_at = now;
    s->shell.modes_may_differ = true;
    swx_session_type_bytes(s, "\003", 1);
}

const swx_transport swx_transport_stream = {
    .silence = 2000 * MS,
    .delivery = 1000 * MS,
    .fork = 100 * MS,
    .unread = 250 * MS,
    .farewell = 300 * MS,
    .drop_input = drop_input,
    .interrupt = interrupt,
};

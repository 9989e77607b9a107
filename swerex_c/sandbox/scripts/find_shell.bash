# Argument: the mark of a session. Exit code 0: the session's shell exists and leads its terminal session.
. process_lib.bash
. shell_lib.bash

[[ $shell ]] && ((leads))

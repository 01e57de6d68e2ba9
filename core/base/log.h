// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The log takes lines that are no answer to a call: a directory's server went away, a peer was refused. There is one
/// hook for the whole process. Without a hook, lines go to stderr, because stdout belongs to the program.

#include <functional>
#include <string>

namespace freshet {

enum class LogLevel { info, warning };

/// `line` has neither a line break at its end nor the name of the program. Called by any thread, and by several at
/// once; it must not throw, nor call a function of Freshet.
using LogHook = std::function<void(LogLevel level, const std::string& line)>;

/// From now on lines go to `hook`. Null: to stderr again, as "freshet: LINE". A thread may stay in the former hook a
/// little longer, so the objects that the former hook uses must stay.
void set_log_hook(LogHook hook);

/// Any thread. For lines that people should see once; it may block as long as stderr does.
void log_line(LogLevel level, const std::string& line);

}  // namespace freshet

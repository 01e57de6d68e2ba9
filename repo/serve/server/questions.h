// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a server knows of a question before it is worked on. A new question has its line here. Private to this folder.

#include <cstddef>
#include <cstdint>

#include "repo/serve/wire/messages.h"

namespace freshet::rpc {

/// Which threads work on a question. Quick questions never wait for another question. Questions that change the
/// repository take turns. Slow questions may take minutes. A verify reads all that is stored, and every reader may ask
/// for it, so it has threads of its own: no operator's question waits for one.
enum class WorkQueue : std::uint8_t { quick, write, slow, verify };
WorkQueue queue_of(const wire::Request& question);

/// The length of the longest honest question of a kind: kTextBytesMax, unless the kind has a manifest, a graph or a
/// list.
std::size_t question_bytes_max(wire::Ask kind);

}  // namespace freshet::rpc

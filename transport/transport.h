// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How bytes and news travel from the process that trains to those that serve, and nothing about where versions rest.
///
/// Two doors, for the two sides:
///   1. publisher.h: copies tensors into an arena, turns them into versions behind the loop's back, and serves them.
///   2. subscriber.h: hears of versions, maps what changed, swaps whole versions in, and hands out snapshots.
///
/// Behind the doors, in reading order:
///   3. protocol/: what the two sides say to each other, as state machines that are handed messages and a time and
///      return actions. They do no I/O, so the simulator in tests/sim drives the very code that the shells run.
///      transport/WIRE.md tells the protocol as prose.
///   4. arena/: the memory that versions lie in. publish/: the copy that blocks the loop, and what follows it.
///      subscribe/: the loop that follows a model, what it fetches, and how readers pin what it serves.
///   5. channel/: how bytes travel where memory cannot be shared, over UCX or ZeroMQ. serve/: what they are answered
///   from.
///   6. directory/, redis/: how processes find each other, and what is current. security/: who may come in.
///   7. group/: the ranks of one job: how they meet, agree, and notice that one is gone.
///   8. zmq/, shm/: the shells that carry the machines' actions out. file/: folders that trainers and engines exchange.

#include "transport/directory/directory.h"
#include "transport/publisher.h"
#include "transport/subscriber.h"

// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/server/questions.h"

namespace freshet::rpc {
namespace {

bool has_dedup(const wire::AskWanted& wanted) { return wanted.put() != nullptr && wanted.put()->dedup(); }

}  // namespace

WorkQueue queue_of(const wire::Request& question) {
  switch (question.body_type()) {
    // Whoever pins, or looks for equal tensors, takes the writers' turn.
    case wire::Ask::Match:
      return bytes_in(question.body_as_Match()->pin_by()) == 0 ? WorkQueue::quick : WorkQueue::write;
    case wire::Ask::AskWanted: return has_dedup(*question.body_as_AskWanted()) ? WorkQueue::write : WorkQueue::quick;
    case wire::Ask::Put:
    case wire::Ask::BeginPut:
    case wire::Ask::AskPartDigests:
    case wire::Ask::CommitPut:
    case wire::Ask::AbortPut:
    case wire::Ask::Pin:
    case wire::Ask::Annotate:
    case wire::Ask::SettlePut:
    case wire::Ask::SetAlias:
    case wire::Ask::AddReferrer:
    case wire::Ask::DropReferrer:
    case wire::Ask::ChangeShared: return WorkQueue::write;
    case wire::Ask::Retire:
    case wire::Ask::Gc:
    case wire::Ask::ReviveSegments: return WorkQueue::slow;
    case wire::Ask::AskVerify: return WorkQueue::verify;
    default: return WorkQueue::quick;
  }
}

std::size_t question_bytes_max(wire::Ask kind) {
  if (kind > wire::Ask::MAX) return kMessageBytesMax;  // Of a newer build: refused as unsupported, whatever its length.
  switch (kind) {
    case wire::Ask::Put:
    case wire::Ask::AskWanted:
    case wire::Ask::BeginPut:
    case wire::Ask::PutParts:
    case wire::Ask::CommitPut:
    case wire::Ask::AskBytes:
    case wire::Ask::AskSegments:
    case wire::Ask::Lend:
    case wire::Ask::Match:
    case wire::Ask::Annotate:
    case wire::Ask::AddReferrer:
    case wire::Ask::ReviveSegments:
    case wire::Ask::ChangeShared: return kMessageBytesMax;
    default: return kTextBytesMax;
  }
}

}  // namespace freshet::rpc

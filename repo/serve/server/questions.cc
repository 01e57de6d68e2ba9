// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/server/questions.h"

namespace freshet::rpc {

WorkQueue queue_of(wire::Ask kind) {
  switch (kind) {
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
    case wire::Ask::ReviveSegments:
    case wire::Ask::AskVerify: return WorkQueue::slow;
    default: return WorkQueue::quick;
  }
}

std::size_t question_bytes_max(wire::Ask kind) {
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

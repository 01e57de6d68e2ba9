// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/server/rights.h"

#include "core/base/format.h"
#include "repo/registrar/registrar_records.h"

namespace freshet::rpc {
namespace {

using SharedRecords = flatbuffers::Vector<Offset<wire::SharedRecord>>;

constexpr std::size_t kDigitsMax = 20;  ///< Of a 64-bit number.

bool is_number(const wire::SharedRecord& record) {
  if (bytes_in(record.key()) > kSharedKeyBytesMax || data_of(record.value()).size() > kDigitsMax) return false;
  return record.key() != nullptr && record.key()->string_view().starts_with(kNumberPrefix);
}

const wire::SharedRecord* number_of(const SharedRecords& records, std::string_view key) {
  for (const wire::SharedRecord* record : records) {
    if (is_number(*record) && record->key()->string_view() == key) return record;
  }
  return nullptr;
}

bool grows(const SharedRecords& expected, const wire::SharedRecord& next) {
  if (!is_number(next) || next.value() == nullptr) return false;
  const wire::SharedRecord* const before = number_of(expected, next.key()->string_view());
  if (before == nullptr) return false;
  const Result<VersionNumber> from = last_number(read(*before));
  const Result<VersionNumber> to = last_number(read(next));
  // Above what a put may ask for, only one by one: so no writer uses up a model's numbers.
  return from && to && *to > *from && (*to <= kGivenNumberMax || *to == *from + 1);
}

// A number that grows, by compare-and-swap: a put over several providers changes nothing else of what they share. The
// server's loop waits for this, so only a few records are compared.
bool only_counts(const wire::ChangeShared& change) {
  const SharedRecords* const expected = change.expected();
  const SharedRecords* const changes = change.changes();
  if (expected == nullptr || changes == nullptr || changes->size() == 0) return false;
  if (expected->size() > kCountedMax || changes->size() > kCountedMax) return false;
  for (const wire::SharedRecord* next : *changes) {
    if (!grows(*expected, *next)) return false;
  }
  return true;
}

std::string_view verb_of(const wire::Request& question) {
  switch (question.body_type()) {
    case wire::Ask::Put:
    case wire::Ask::AskWanted:
    case wire::Ask::BeginPut:
    case wire::Ask::PutParts:
    case wire::Ask::AskPartDigests:
    case wire::Ask::CommitPut:
    case wire::Ask::AbortPut:
    case wire::Ask::AddReferrer: return "put";
    case wire::Ask::Annotate: return "set";
    case wire::Ask::Pin:
    case wire::Ask::RenewPins: return "pin";
    case wire::Ask::Match: return "match with a pin";
    case wire::Ask::Retire: return "retire";
    case wire::Ask::Gc:
    case wire::Ask::DropReferrer:
    case wire::Ask::SettlePut: return "gc";
    case wire::Ask::SetAlias: return "alias";
    case wire::Ask::ReviveSegments: return "repair";
    case wire::Ask::ChangeShared: return "change what providers share (placement, aliases)";
    default: return "this";
  }
}

}  // namespace

Right needed_right(const wire::Request& question) {
  switch (question.body_type()) {
    case wire::Ask::AskRecord:
    case wire::Ask::AskLatest:
    case wire::Ask::AskFind:
    case wire::Ask::AskBytes:
    case wire::Ask::AskOwners:
    case wire::Ask::AskLineage:
    case wire::Ask::AskCommonAncestor:
    case wire::Ask::AskDescendants:
    case wire::Ask::AskContributors:
    case wire::Ask::AskDiff:
    case wire::Ask::AskModels:
    case wire::Ask::AskVersions:
    case wire::Ask::AskPins:
    case wire::Ask::AskAllPins:
    case wire::Ask::AskStat:
    case wire::Ask::AskVerify:
    case wire::Ask::AskSegments:
    case wire::Ask::AskShared:
    case wire::Ask::ListShared:
    case wire::Ask::AskAliases:
    case wire::Ask::AskReferrers:
    case wire::Ask::Lend:
    case wire::Ask::RenewLease:
    case wire::Ask::EndLease: return Right::read;
    case wire::Ask::Match: {
      const wire::Match* const match = question.body_as_Match();
      return match->pin_by() == nullptr || match->pin_by()->size() == 0 ? Right::read : Right::write;
    }
    case wire::Ask::Put:
    case wire::Ask::AskWanted:
    case wire::Ask::BeginPut:
    case wire::Ask::PutParts:
    case wire::Ask::AskPartDigests:
    case wire::Ask::CommitPut:
    case wire::Ask::AbortPut:
    case wire::Ask::Annotate:
    case wire::Ask::Pin:
    case wire::Ask::RenewPins:
    case wire::Ask::AddReferrer: return Right::write;
    case wire::Ask::ChangeShared: return only_counts(*question.body_as_ChangeShared()) ? Right::write : Right::operate;
    default: return Right::operate;
  }
}

Error missing_right(const wire::Request& question) {
  const std::string_view word = word_of(needed_right(question));
  return Error(
      Code::failed_precondition,
      format("{0}: this needs {1} rights; put the word {1} before this client's key in the server's allow-list",
             verb_of(question), word));
}

}  // namespace freshet::rpc

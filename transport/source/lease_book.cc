// SPDX-License-Identifier: Apache-2.0
#include "transport/source/lease_book.h"

#include "core/base/format.h"

namespace freshet::source {

Status check_pieces(const std::vector<channel::Piece>& pieces, std::string_view what,
                    const std::function<std::optional<std::uint64_t>(std::uint32_t part)>& bytes_of) {
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const channel::Piece& piece = pieces[i];
    const auto refuse = [&](std::string_view why) {
      return fail(Code::invalid_argument, format("fetch {}: piece {} {}", what, i, why));
    };
    const std::optional<std::uint64_t> bytes = bytes_of(piece.tensor);
    if (!bytes) return refuse(format("names tensor {}, which does not exist", piece.tensor));
    if (piece.offset > *bytes || piece.bytes > *bytes - piece.offset) {
      return refuse(format("asks for {} bytes from {} on, of {}", piece.bytes, piece.offset, *bytes));
    }
    if (piece.base && (piece.offset != 0 || piece.bytes != *bytes)) return refuse("wants a delta of a part");
  }
  return {};
}

}  // namespace freshet::source

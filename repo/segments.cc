/// Segments on the disk.

#include "repo/local_repository.h"

namespace freshet {

Status LocalRepository::Impl::read_segment(const SegmentName& segment, MutableBytes out) const {
  Status status = backend->read_blob(segment_key(segment), 0, out);
  if (!status && status.error().code() == Code::not_found) return fail(Code::corrupt, "its bytes are missing");
  return status;
}

}  // namespace freshet

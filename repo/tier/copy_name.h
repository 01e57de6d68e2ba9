// SPDX-License-Identifier: Apache-2.0
#pragma once

/// How a copy is named: by what it copies. The keeper, which makes copies, and the reader, which finds them from inside
/// a foreign program, share this header, so it needs nothing but the compiler and what `struct stat` is: no library, no
/// memory, no error.
///
/// A name is the identity in hexadecimal digits of fixed width, "SS-INODE-SIZE-MTIME-NS-CTIME-NS", below a folder of
/// two digits. Links, `..` and relative names lead to the same inode and need no logic; a source that changed has
/// another name.

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>

namespace freshet::tier {

/// A source file at one time. `source` is the place in the config of the first source on the file's file system: the
/// device number of a network mount changes with each mount.
struct Identity {
  std::uint32_t source = 0;
  std::uint64_t inode = 0;
  std::uint64_t size = 0;
  std::int64_t mtime = 0;
  std::int64_t ctime = 0;
  std::uint32_t mtime_ns = 0;
  std::uint32_t ctime_ns = 0;

  bool operator==(const Identity&) const = default;
};

/// What fstat() says of a source; `source` is its place in the config.
inline Identity identity_of(std::uint32_t source, const struct stat& file) {
  return {.source = source,
          .inode = file.st_ino,
          .size = static_cast<std::uint64_t>(file.st_size),
          .mtime = file.st_mtim.tv_sec,
          .ctime = file.st_ctim.tv_sec,
          .mtime_ns = static_cast<std::uint32_t>(file.st_mtim.tv_nsec),
          .ctime_ns = static_cast<std::uint32_t>(file.st_ctim.tv_nsec)};
}

inline constexpr std::size_t kNameBytes = 2 + 1 + 16 + 1 + 16 + 1 + 16 + 1 + 8 + 1 + 16 + 1 + 8;
/// "xx/" and the name.
inline constexpr std::size_t kCopyPathBytes = 3 + kNameBytes;

/// A name that begins so is unfinished, or the tier's own; it is never served.
inline constexpr char kOwnPrefix[] = ".freshet-";

/// The mode of every copy, by which the reader recognises one at once.
inline constexpr std::uint32_t kCopyMode = 0400;

/// A tier is one user's, and nobody else may write to it: others could put into it what looks like copies.
inline bool is_own_folder(const struct stat& folder, std::uint32_t user) {
  return S_ISDIR(folder.st_mode) && folder.st_uid == user && (folder.st_mode & 022) == 0;
}

/// Tells that user's finished copy of a file, as far as that is possible without reading it.
inline bool is_finished_copy(const struct stat& copy, const Identity& source, std::uint32_t user) {
  return copy.st_mode == (S_IFREG | kCopyMode) && copy.st_uid == user &&
         static_cast<std::uint64_t>(copy.st_size) == source.size && copy.st_mtim.tv_sec == source.mtime &&
         static_cast<std::uint32_t>(copy.st_mtim.tv_nsec) == source.mtime_ns;
}

/// The extended attribute of a copy that holds its CopyNote, then the source's path (absent when it did not fit).
inline constexpr char kNoteAttribute[] = "user.freshet.copy";
inline constexpr std::uint64_t kNoteMagic = 0x31306574'6f4e7446;

struct CopyNote {
  std::uint64_t magic = kNoteMagic;
  std::uint64_t digest_low = 0;  ///< XXH3-128 of the bytes.
  std::uint64_t digest_high = 0;
  std::uint64_t blocks = 0;  ///< Of 512 bytes, at the source.
  std::uint32_t mode = 0;
  std::uint32_t owner = 0;
  std::uint32_t group = 0;
  std::uint32_t links = 0;
};

/// Spreads every bit of `value` over the result (the finisher of MurmurHash3).
constexpr std::uint64_t mixed(std::uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccdULL;
  value ^= value >> 33;
  value *= 0xc4ceb9fe1a85ec53ULL;
  return value ^ (value >> 33);
}

/// One number for the file, whatever its content is at the time. Never 0.
constexpr std::uint64_t file_key(std::uint32_t source, std::uint64_t inode) {
  const std::uint64_t key = mixed(inode ^ mixed(source + 1));
  return key != 0 ? key : 1;
}

/// One number for the file as it is. Never 0.
constexpr std::uint64_t identity_key(const Identity& identity) {
  std::uint64_t key = file_key(identity.source, identity.inode);
  key = mixed(key ^ identity.size);
  key = mixed(key ^ static_cast<std::uint64_t>(identity.mtime) ^ (std::uint64_t{identity.mtime_ns} << 32));
  key = mixed(key ^ static_cast<std::uint64_t>(identity.ctime) ^ (std::uint64_t{identity.ctime_ns} << 32));
  return key != 0 ? key : 1;
}

/// FNV-1a, over pieces: begin with kHashSeed.
inline constexpr std::uint64_t kHashSeed = 0xcbf29ce484222325ULL;
constexpr std::uint64_t hashed(std::uint64_t hash, const char* bytes, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) hash = (hash ^ static_cast<unsigned char>(bytes[i])) * 0x100000001b3ULL;
  return hash;
}

constexpr char* put_hex(char* at, std::uint64_t value, int digits) {
  for (int i = digits - 1; i >= 0; --i, value >>= 4) at[i] = "0123456789abcdef"[value & 15];
  return at + digits;
}

/// False when a byte is no hexadecimal digit in lower case.
constexpr bool take_hex(const char*& at, std::uint64_t& value, int digits) {
  value = 0;
  for (int i = 0; i < digits; ++i, ++at) {
    const char c = *at;
    if (c >= '0' && c <= '9') {
      value = value << 4 | static_cast<std::uint64_t>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      value = value << 4 | static_cast<std::uint64_t>(c - 'a' + 10);
    } else {
      return false;
    }
  }
  return true;
}

/// How many hexadecimal digits a value has; 1 for 0.
constexpr int hex_digits_of(std::uint64_t value) {
  int digits = 1;
  while ((value >>= 4) != 0) ++digits;
  return digits;
}

/// validate = "never": in each tier, "PATHS/xx/yyyyyyyyyyyyyy" of the hash of a source's absolute path is a symbolic
/// link whose text is the identity of the copy, in digits without leading zeros: so short that the link needs no block
/// of the disk.
inline constexpr char kPathsFolder[] = ".freshet-paths";
inline constexpr std::size_t kPathLinkBytes = sizeof kPathsFolder - 1 + 1 + 2 + 1 + 14;
inline constexpr std::size_t kPathTextBytes = 2 + 1 + 16 + 1 + 16 + 1 + 16 + 1 + 8 + 1 + 16 + 1 + 8;

/// Writes the link's place in its tier, without a zero after it; returns the end.
constexpr char* put_path_link(char* at, std::uint64_t path_hash) {
  for (std::size_t i = 0; i + 1 < sizeof kPathsFolder; ++i) *at++ = kPathsFolder[i];
  *at++ = '/';
  at = put_hex(at, path_hash & 0xff, 2);
  *at++ = '/';
  return put_hex(at, path_hash >> 8, 14);
}

/// Writes what the link says, without a zero after it; returns the end.
constexpr char* put_path_text(char* at, const Identity& identity) {
  const std::uint64_t values[] = {identity.source,   identity.inode,
                                  identity.size,     static_cast<std::uint64_t>(identity.mtime),
                                  identity.mtime_ns, static_cast<std::uint64_t>(identity.ctime),
                                  identity.ctime_ns};
  for (int i = 0; i < 7; ++i) {
    if (i > 0) *at++ = '-';
    at = put_hex(at, values[i], hex_digits_of(values[i]));
  }
  return at;
}

/// The numbers of a name, in its order.
constexpr Identity identity_of(const std::uint64_t (&values)[7]) {
  return {.source = static_cast<std::uint32_t>(values[0]),
          .inode = values[1],
          .size = values[2],
          .mtime = static_cast<std::int64_t>(values[3]),
          .ctime = static_cast<std::int64_t>(values[5]),
          .mtime_ns = static_cast<std::uint32_t>(values[4]),
          .ctime_ns = static_cast<std::uint32_t>(values[6])};
}

/// Reads what a link says. False when it is not a copy's.
constexpr bool take_path_text(const char* at, const char* end, Identity& identity) {
  constexpr int kDigitsMax[] = {2, 16, 16, 16, 8, 16, 8};
  std::uint64_t values[7] = {};
  for (int i = 0; i < 7; ++i) {
    if (i > 0 && (at == end || *at++ != '-')) return false;
    int digits = 0;
    while (at + digits < end && at[digits] != '-') ++digits;
    if (digits < 1 || digits > kDigitsMax[i] || !take_hex(at, values[i], digits)) return false;
  }
  if (at != end) return false;
  identity = identity_of(values);
  return true;
}

/// Writes "xx/NAME" without a zero after it; returns the end.
constexpr char* put_copy_path(char* at, const Identity& identity) {
  at = put_hex(at, file_key(identity.source, identity.inode) & 0xff, 2);
  *at++ = '/';
  at = put_hex(at, identity.source, 2);
  *at++ = '-';
  at = put_hex(at, identity.inode, 16);
  *at++ = '-';
  at = put_hex(at, identity.size, 16);
  *at++ = '-';
  at = put_hex(at, static_cast<std::uint64_t>(identity.mtime), 16);
  *at++ = '-';
  at = put_hex(at, identity.mtime_ns, 8);
  *at++ = '-';
  at = put_hex(at, static_cast<std::uint64_t>(identity.ctime), 16);
  *at++ = '-';
  return put_hex(at, identity.ctime_ns, 8);
}

/// Reads a NAME of kNameBytes. False when it is no copy's.
constexpr bool take_name(const char* at, Identity& identity) {
  constexpr int kDigits[] = {2, 16, 16, 16, 8, 16, 8};
  std::uint64_t values[7] = {};
  for (int i = 0; i < 7; ++i) {
    if (i > 0 && *at++ != '-') return false;
    if (!take_hex(at, values[i], kDigits[i])) return false;
  }
  identity = identity_of(values);
  return true;
}

}  // namespace freshet::tier

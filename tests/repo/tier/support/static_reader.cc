// SPDX-License-Identifier: Apache-2.0
// A static program, into which no library can be put: prints the bytes and a sum of each file.
//
// usage: static_reader FILE…

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int count, char** paths) {
  static char bytes[1 << 16];
  for (int i = 1; i < count; ++i) {
    const int fd = open(paths[i], O_RDONLY | O_CLOEXEC);
    unsigned long sum = 0;
    unsigned long all = 0;
    if (fd < 0) {
      printf("%s\n", strerror(errno));
      continue;
    }
    for (ssize_t got; (got = read(fd, bytes, sizeof bytes)) > 0; all += static_cast<unsigned long>(got)) {
      for (ssize_t at = 0; at < got; ++at) sum = sum * 31 + static_cast<unsigned char>(bytes[at]);
    }
    printf("%lu %lu %d %d\n", all, sum, fcntl(fd, F_GETFD), fcntl(fd, F_GETFL) & (O_ACCMODE | O_NONBLOCK));
    close(fd);
  }
  return 0;
}

// libcrypto is loaded on demand, as MPI and NCCL are: programs that compute no digest do not depend on it.
#pragma once

#include <cstddef>

namespace dtensor {

struct Libcrypto {
  const void* (*sha256)() = nullptr;  // EVP_sha256
  int (*digest)(const void* data, std::size_t bytes, unsigned char* result, unsigned* result_bytes, const void* hash,
                void* engine) = nullptr;  // EVP_Digest
  unsigned char* (*hmac)(const void* hash, const void* key, int key_bytes, const unsigned char* data, std::size_t bytes,
                         unsigned char* result, unsigned* result_bytes) = nullptr;  // HMAC
};

// Loaded once. Throws CommError if it cannot be loaded.
const Libcrypto& libcrypto();

}  // namespace dtensor

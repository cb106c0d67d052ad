// Loads libcrypto and computes digests with it.
#include "comm/libcrypto.h"

#include <dlfcn.h>

#include <string>

#include "dtensor/comm.h"
#include "internal/sha256.h"

namespace dtensor {
namespace {

constexpr const char* kNames[] = {"libcrypto.so.3", "libcrypto.so.1.1"};

template <class F>
void find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
}

Libcrypto load() {
  for (const char* name : kNames) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    Libcrypto crypto;
    find(library, "EVP_sha256", crypto.sha256);
    find(library, "EVP_Digest", crypto.digest);
    find(library, "HMAC", crypto.hmac);
    if (crypto.sha256 != nullptr && crypto.digest != nullptr && crypto.hmac != nullptr) return crypto;
  }
  throw CommError(std::string("secrets and SHA-256 need OpenSSL's libcrypto, but neither ") + kNames[0] + " nor " +
                  kNames[1] + " can be loaded; install it (Debian: libssl3), or unset DTENSOR_SECRET if it is set");
}

}  // namespace

const Libcrypto& libcrypto() {
  static const Libcrypto loaded = load();
  return loaded;
}

std::array<std::uint8_t, 32> sha256(const void* data, std::size_t bytes) {
  const Libcrypto& crypto = libcrypto();
  std::array<std::uint8_t, 32> digest{};
  if (crypto.digest(data, bytes, digest.data(), nullptr, crypto.sha256(), nullptr) != 1) {
    throw CommError("OpenSSL's libcrypto could not compute SHA-256");
  }
  return digest;
}

}  // namespace dtensor

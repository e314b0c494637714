// Certificates for tests of TLS, signed by themselves or by one another.
#pragma once

#include <gtest/gtest.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>
#include <string>

namespace expertflow {

struct CertificateOptions {
  std::string common_name = "localhost";
  // As openssl's x509v3_config has it: "DNS:localhost,IP:127.0.0.1".
  std::string alternative_names = "DNS:localhost,IP:127.0.0.1";
  bool is_authority = false;
  long valid_s = 86'400;  // from an hour ago; less than an hour has passed already
};

class Certificate {
 public:
  // Signed by `issuer`, or by itself.
  explicit Certificate(const CertificateOptions& options, const Certificate* issuer = nullptr)
      : key_(EVP_EC_gen("P-256"), &EVP_PKEY_free), certificate_(X509_new(), &X509_free) {
    static long serial = 0;
    X509* x509 = certificate_.get();
    X509_set_version(x509, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(x509), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(x509), -kHourS);
    X509_gmtime_adj(X509_getm_notAfter(x509), options.valid_s - kHourS);
    X509_set_pubkey(x509, key_.get());
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x509), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(options.common_name.c_str()),
                               -1, -1, 0);
    X509* signer = issuer == nullptr ? x509 : issuer->certificate_.get();
    X509_set_issuer_name(x509, X509_get_subject_name(signer));
    if (!options.alternative_names.empty()) {
      Extend(signer, NID_subject_alt_name, options.alternative_names);
    }
    if (options.is_authority) Extend(signer, NID_basic_constraints, "critical,CA:TRUE");
    EXPECT_GT(X509_sign(x509, (issuer == nullptr ? *this : *issuer).key_.get(), EVP_sha256()), 0);
  }

  void WriteCertificate(const std::string& file) const {
    const File to(file);
    EXPECT_EQ(PEM_write_X509(to.get(), certificate_.get()), 1);
  }
  // Locked, where there is a password.
  void WriteKey(const std::string& file, const std::string& password = "") const {
    const File to(file);
    EXPECT_EQ(PEM_write_PrivateKey(
                  to.get(), key_.get(), password.empty() ? nullptr : EVP_aes_256_cbc(), nullptr, 0,
                  nullptr, password.empty() ? nullptr : const_cast<char*>(password.c_str())),
              1);
  }
  // NAME.pem and NAME.key
  void Write(const std::string& name) const {
    WriteCertificate(name + ".pem");
    WriteKey(name + ".key");
  }

 private:
  static constexpr long kHourS = 3600;

  class File {
   public:
    explicit File(const std::string& name) : file_(std::fopen(name.c_str(), "w")) {}
    ~File() { std::fclose(file_); }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    FILE* get() const { return file_; }

   private:
    FILE* file_;
  };

  void Extend(X509* signer, int nid, const std::string& value) const {
    X509V3_CTX context;
    X509V3_set_ctx(&context, signer, certificate_.get(), nullptr, nullptr, 0);
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
    ASSERT_NE(extension, nullptr) << value;
    X509_add_ext(certificate_.get(), extension, -1);
    X509_EXTENSION_free(extension);
  }

  std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key_;
  std::unique_ptr<X509, decltype(&X509_free)> certificate_;
};

}  // namespace expertflow

"""BatchCrypt: batches under Paillier."""

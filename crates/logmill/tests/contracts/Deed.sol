// SPDX-License-Identifier: MIT
pragma solidity ^0.8.20;

/// Unique tokens (ERC-721). Who may do what is left out: everybody may mint, and burn and move what others own.
contract Deed {
    string public constant name = "Deeds of the tests";
    string public constant symbol = "DEED";

    /// The zero address for what was never minted, or was burnt.
    mapping(uint256 => address) public ownerOf;
    mapping(address => uint256) public balanceOf;

    event Transfer(address indexed from, address indexed to, uint256 indexed id);
    event Approval(address indexed owner, address indexed approved, uint256 indexed id);

    function supportsInterface(bytes4 id) external pure returns (bool) {
        return id == 0x01ffc9a7 || id == 0x80ac58cd || id == 0x5b5e139f;
    }

    /// JSON that needs no fetching.
    function tokenURI(uint256 id) external view returns (string memory) {
        require(ownerOf[id] != address(0), "no such deed");
        return string.concat('data:application/json,{"name":"Deed ', digits(id), '"}');
    }

    function approve(address to, uint256 id) external {
        emit Approval(ownerOf[id], to, id);
    }

    function mint(address to, uint256 id) external {
        move(to, id);
    }

    function burn(uint256 id) external {
        move(address(0), id);
    }

    function transferFrom(address from, address to, uint256 id) external {
        require(ownerOf[id] == from, "owned by another");
        move(to, id);
    }

    /// Mints `count` deeds from `first` on to accounts with the same numbers.
    function spread(uint256 first, uint256 count) external {
        for (uint256 id = first; id < first + count; id++) move(address(uint160(id)), id);
    }

    /// `count` mints, burns and transfers of `ids` deeds among `holders` accounts, both numbered from 1, as `seed`
    /// draws them.
    function scatter(uint256 count, uint256 ids, uint256 holders, uint256 seed) external {
        for (uint256 i = 0; i < count; i++) {
            uint256 r = uint256(keccak256(abi.encode(seed, i)));
            uint256 id = 1 + (r >> 8) % ids;
            bool burns = r % 8 == 0 && ownerOf[id] != address(0);
            move(burns ? address(0) : address(uint160(1 + (r >> 72) % holders)), id);
        }
    }

    function move(address to, uint256 id) private {
        address from = ownerOf[id];
        if (from != address(0)) balanceOf[from] -= 1;
        if (to != address(0)) balanceOf[to] += 1;
        ownerOf[id] = to;
        emit Transfer(from, to, id);
    }

    function digits(uint256 number) private pure returns (string memory) {
        uint256 length = 1;
        for (uint256 rest = number; rest >= 10; rest /= 10) length++;
        bytes memory text = new bytes(length);
        for (; length > 0; length--) {
            text[length - 1] = bytes1(uint8(48 + number % 10));
            number /= 10;
        }
        return string(text);
    }
}
